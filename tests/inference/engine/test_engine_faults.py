"""One request's fault ends that request; its neighbours' tokens don't change by a bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from inference.engine.engine import MAX_MEMORY_ERRORS, Engine
from inference.engine.request import FinishReason
from inference.engine.sampling import sampler as sampler_module
from inference.engine.speculation.setup import Speculation
from inference.errors import EngineDead, GenerationFailed, NumericalError
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.engine.fakes import (
    FakeNetwork,
    assert_all_free,
    collect,
    expected_tokens,
    make_engine,
    make_spec,
    request,
    run,
)

SPEC = make_spec("hybrid")
OPTIONS = {"max_num_seqs": 16, "num_state_slots": 17, "num_blocks": 200}
NUM = 16


def requests(**extra):
    """16 of them, greedy and sampled, with and without log-probabilities."""
    return [
        request(
            f"r{i}",
            [i, i + 1, i + 2],
            max_tokens=10,
            temperature=(i % 3) * 0.6,
            seed=i,
            logprobs=2 if i % 2 else None,
            repetition_penalty=1.1 if i % 5 == 0 else 1.0,
            **extra,
        )
        for i in range(NUM)
    ]


def undisturbed():
    return run(make_engine("hybrid", **OPTIONS), *requests())


def assert_only_failed(found, failed: set[str], reference, error: type[Exception] = GenerationFailed) -> None:
    assert len(found) == NUM
    for name, entry in found.items():
        if name in failed:
            assert entry.finish_reason is FinishReason.ERROR
            assert type(entry.finals[0].error) is error
            assert entry.tokens == reference[name].tokens[: len(entry.tokens)]
        else:
            assert entry.finish_reason is FinishReason.LENGTH
            assert (entry.tokens, entry.logprobs) == (reference[name].tokens, reference[name].logprobs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 7, 15])
def test_unusable_logits_end_only_their_request(value, row, monkeypatch):
    reference = undisturbed()
    engine = make_engine("hybrid", **OPTIONS)
    original = FakeNetwork.compute_logits
    # The poisoned request is the one whose last token and place in its sequence give this hidden row.
    broken: list[torch.Tensor] = []

    def poisoned(self, hidden):
        logits = original(self, hidden)
        if not broken and engine.stats().num_steps == 4:
            broken.append(hidden[row])
            logits[row, 50 if value == math.inf else slice(None)] = value
        return logits

    monkeypatch.setattr(FakeNetwork, "compute_logits", poisoned)
    found = run(engine, *requests())
    assert_only_failed(found, {f"r{row}"}, reference, NumericalError)
    assert "numerical_error" in found[f"r{row}"].finals[0].error.message
    assert engine.stats().num_failed == 1


def test_nan_left_in_freed_blocks_does_not_reach_the_next_owner():
    """What a failed request wrote into its state is never read by another one."""
    engine = make_engine("hybrid", num_blocks=9, num_state_slots=2, max_num_seqs=1)
    for layer in engine._runner.layer_states:
        for tensor in layer.values():
            tensor[4 if tensor.shape[0] > 2 else 1 :] = math.nan
    found = run(engine, request("r", [1, 2, 3], max_tokens=20))
    assert found["r"].tokens == expected_tokens(SPEC, [1, 2, 3], 20)


@pytest.mark.parametrize("error", [ValueError("bad"), RecursionError(), MemoryError(), IndexError("no entry")])
def test_an_exception_while_sampling_ends_only_its_request(error, monkeypatch):
    reference = undisturbed()
    original = sampler_module.LogitBias.apply

    def failing(self, logits, rows):
        if any(row.params.seed == 6 and row.num_output_tokens == 3 for row in rows):
            # Half done, as a real failure may leave it.
            logits[: len(rows) // 2] += 1.0
            raise error
        original(self, logits, rows)

    monkeypatch.setattr(sampler_module.LogitBias, "apply", failing)
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(sampler_module.SamplingState, "is_plain", never, raising=False)
    found = run(make_engine("hybrid", **OPTIONS), *requests())
    assert_only_failed(found, {"r6"}, reference)
    assert len(found["r6"].tokens) == 3


def test_an_exception_in_logprobs_ends_only_its_request(monkeypatch):
    reference = undisturbed()
    original = sampler_module.Sampler._score

    def failing(self, log_probs, token_ids, num_top):
        if reference["r3"].tokens[5] in token_ids.tolist() and engine.stats().num_steps == 5:
            raise RuntimeError("no logprobs")
        return original(self, log_probs, token_ids, num_top)

    engine = make_engine("hybrid", **OPTIONS)
    monkeypatch.setattr(sampler_module.Sampler, "_score", failing)
    found = run(engine, *requests())
    failed = {name for name, entry in found.items() if entry.finish_reason is FinishReason.ERROR}
    assert "r3" in failed and len(failed) <= 2, "another request may have got the same token in that step"
    assert_only_failed(found, failed, reference)


def test_a_prompt_that_cannot_be_scored_fails_alone():
    network = FakeNetwork(SPEC, poison={42: math.nan})
    engine = make_engine(network=network, **OPTIONS)
    found = run(
        engine,
        request("bad", [1, 42, 3], max_tokens=4, prompt_logprobs=1),
        request("unscored", [1, 42, 3], max_tokens=1),
        request("good", [1, 2, 3], max_tokens=4, prompt_logprobs=1),
    )
    assert found["bad"].finish_reason is FinishReason.ERROR and found["bad"].prompt_logprobs is None
    assert found["unscored"].finish_reason is FinishReason.LENGTH
    assert len(found["good"].prompt_logprobs) == 2 and found["good"].finish_reason is FinishReason.LENGTH


class FailingNetwork(FakeNetwork):
    """Raises at given forward passes, after half the states have advanced."""

    failures: dict[int, Exception]
    passes = 0

    def __call__(self, batch, states):
        self.passes += 1
        error = self.failures.pop(self.passes, None)
        if error is not None:
            super().__call__(batch, states[:1])
            raise error
        return super().__call__(batch, states)


def failing_engine(failures, kind="hybrid", **options):
    network = FailingNetwork(make_spec(kind))
    network.failures = dict(failures)
    return make_engine(network=network, **(OPTIONS | options))


def test_a_failing_forward_pass_ends_the_engine():
    engine = failing_engine({4: RuntimeError("device-side assert")}, max_num_seqs=4)
    found: dict = {}
    for i in range(6):
        engine.add_request(request(f"r{i}", [i], max_tokens=3 if i == 0 else 9))
    engine.abort_request("r5")
    with pytest.raises(EngineDead) as caught:
        while True:
            collect(engine.step(), found)
    assert "device-side" not in caught.value.message and caught.value.retryable
    reasons = {name: entry.finish_reason for name, entry in found.items() if entry.finals}
    assert reasons == {"r0": "length", "r5": "abort"}, "the worker gives the others' messages back to the queue"
    assert not engine.has_unfinished()
    for call in (engine.step, lambda: engine.add_request(request("new", [1]))):
        with pytest.raises(EngineDead):
            call()
    assert not engine.abort_request("r1")


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_running_out_of_memory_costs_a_step_and_no_request(kind, error):
    spec = make_spec(kind)
    for step in range(1, 12):
        engine = failing_engine({step: error}, kind)
        found = run(engine, *(request(f"r{i}", [i, i + 1], max_tokens=9) for i in range(5)))
        for i in range(5):
            assert found[f"r{i}"].tokens == expected_tokens(spec, [i, i + 1], 9)


def test_memory_that_stays_short_fails_the_newest_and_goes_on():
    failures = {pass_: MemoryError() for pass_ in range(3, 3 + MAX_MEMORY_ERRORS)}
    engine = failing_engine(failures)
    found = run(engine, *(request(f"r{i}", [i, i + 1], max_tokens=9) for i in range(3)))
    reasons = {name: entry.finish_reason for name, entry in found.items()}
    assert sorted(reasons.values()) == ["error", "length", "length"] and reasons["r0"] == "length"
    for name, entry in found.items():
        if reasons[name] == "length":
            assert entry.tokens == expected_tokens(SPEC, [int(name[1]), int(name[1]) + 1], 9)


def test_memory_that_never_suffices_ends_every_request_but_not_the_engine():
    engine = failing_engine({pass_: MemoryError() for pass_ in range(1, 100)})
    found = run(engine, *(request(f"r{i}", [i], max_tokens=4) for i in range(3)))
    assert {entry.finish_reason for entry in found.values()} == {FinishReason.ERROR}
    network = engine._runner._network
    network.failures.clear()
    assert run(engine, request("later", [1], max_tokens=4))["later"].tokens == expected_tokens(SPEC, [1], 4)
    assert_all_free(engine)


def test_steps_grow_again_after_memory_ran_out():
    engine = failing_engine({2: MemoryError()}, "paged", max_num_batched_tokens=32)
    run(engine, request("a", [1], max_tokens=2), request("b", range(60), max_tokens=1))
    sizes = [tokens for tokens, _ in engine._runner._network.batches]
    assert sizes[0] == 32 and 16 in sizes
    run(engine, request("c", range(30, 90), max_tokens=1))
    assert engine._runner._network.batches[len(sizes)] == (32, 0)


class LimitedNetwork(FakeNetwork):
    """Has memory for 40 tokens of a step; a larger step fails after all states have advanced."""

    def __call__(self, batch, states):
        hidden = super().__call__(batch, states)
        if batch.num_tokens > 40:
            raise MemoryError
        return hidden


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
def test_requests_end_although_every_large_step_fails(kind):
    """A failed step makes requests with recurrent state start again; the next large one must not come too soon."""
    spec = make_spec(kind)
    engine = make_engine(
        network=LimitedNetwork(spec), max_model_len=256, num_blocks=400, max_num_batched_tokens=256, prefix_cache=False
    )
    prompts = [[(i + j) % 97 for j in range(60 + 40 * i)] for i in range(4)]
    found = run(engine, *(request(f"r{i}", prompt, max_tokens=9) for i, prompt in enumerate(prompts)))
    failed = [name for name, entry in found.items() if entry.finish_reason is FinishReason.ERROR]
    assert len(failed) <= 1, "256, 128 and 64 tokens fail one after the other"
    for i, prompt in enumerate(prompts):
        assert f"r{i}" in failed or found[f"r{i}"].tokens == expected_tokens(spec, prompt, 9)


class ShortContextNetwork(FakeNetwork):
    """Has no memory for a context of more than 50 tokens, however short the step."""

    def __call__(self, batch, states):
        hidden = super().__call__(batch, states)
        if int(batch.positions.max()) >= 50:
            raise MemoryError
        return hidden


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
@pytest.mark.parametrize("values", [{}, {"prefix_cache": False}, {"num_snapshot_slots": 8}])
def test_a_request_that_never_gets_further_ends(kind, values):
    """It began again each time, and steps between two failures were good ones: it never ended, nor did others."""
    spec = make_spec(kind)
    engine = make_engine(network=ShortContextNetwork(spec), max_model_len=256, num_blocks=400, **values)
    long = request("long", range(60), max_tokens=4, prompt_logprobs=0)
    others = [request(f"r{i}", [i, 2], max_tokens=20) for i in range(3)]
    found = run(engine, long, *others, max_steps=1000)
    assert found["long"].finish_reason is FinishReason.ERROR
    for source in others:
        assert found[source.request_id].tokens == expected_tokens(spec, source.prompt_token_ids, 20)


class PanicException(BaseException):
    """What a Rust library raises through pyo3."""


class FailingBreakers:
    """Raises when the DRY penalty asks about a token of the output."""

    def __init__(self, error):
        self.error = error

    def ends_at(self, token_ids, stop):
        if stop > 4:
            raise self.error
        return False


@pytest.mark.parametrize("is_drafting", [False, True])
@pytest.mark.parametrize("error", [ValueError("bad"), PanicException("rust"), RecursionError()])
def test_an_exception_after_a_token_ends_only_its_request(error, is_drafting):
    """It ended the engine, because a token is recorded after the sampler's own protection."""
    options = OPTIONS | {"num_spare_slots": 2}
    config = make_engine("hybrid", **options).config
    speculation = Speculation(SpeculativeOptions("ngram", is_adaptive=False)) if is_drafting else None
    engine = Engine(FakeNetwork(SPEC, block_size=config.block_size), SPEC, config, speculation=speculation)
    bad = request("bad", [1, 2, 1, 2], max_tokens=9, dry_multiplier=0.1)
    found = run(engine, replace(bad, dry_breakers=FailingBreakers(error)), request("good", [1, 2, 3], max_tokens=9))
    assert found["bad"].finish_reason is FinishReason.ERROR
    assert type(error).__name__ in found["bad"].finals[0].error.message
    assert found["good"].tokens == expected_tokens(SPEC, [1, 2, 3], 9)


def test_a_keyboard_interrupt_is_no_request_error():
    source = replace(
        request("r", [1, 2, 3, 4], max_tokens=9, dry_multiplier=0.1), dry_breakers=FailingBreakers(KeyboardInterrupt())
    )
    with pytest.raises(KeyboardInterrupt):
        run(make_engine("hybrid"), source)
