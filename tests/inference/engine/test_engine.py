"""One request's way through the engine: endings, scores, resumption, and what the door refuses."""

from __future__ import annotations

import math

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.request import EngineRequest, FinishReason
from inference.errors import (
    Conflict,
    InvalidRequest,
    InvalidSamplingParams,
    InvalidTokenIds,
    OutOfCacheBlocks,
    PromptTooLong,
)
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import (
    VOCAB_SIZE,
    FakeNetwork,
    collect,
    expected_tokens,
    logits_after,
    make_engine,
    make_spec,
    request,
    run,
)

PROMPT = [5, 6, 7, 8, 9]
SPEC = make_spec("hybrid")


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid", "stateless"])
def test_greedy_tokens_are_those_of_the_network(kind):
    found = run(make_engine(kind), request("r", PROMPT, max_tokens=20))["r"]
    assert found.tokens == expected_tokens(make_spec(kind), PROMPT, 20)
    assert found.finish_reason is FinishReason.LENGTH
    assert found.logprobs == [] and found.prompt_logprobs is None


def test_a_request_that_cannot_be_queued_leaves_nothing_behind(monkeypatch):
    engine = make_engine()

    def fail(digest, tokens):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(engine._prefix_cache, "fetch", fail)
        engine.add_request(request("r", PROMPT, max_tokens=20))
    assert not engine.has_unfinished()
    assert len(run(engine, request("r", PROMPT, max_tokens=20))["r"].tokens) == 20


def test_end_of_sequence_and_stop_ids_end_it():
    whole = expected_tokens(SPEC, PROMPT, 20)
    last = next(token for token in whole[4:] if token not in whole[:4])
    wanted = whole[: whole.index(last) + 1]
    for options in ({"eos": [last]}, {"stop_token_ids": (last,)}):
        found = run(make_engine(), request("r", PROMPT, max_tokens=20, **options))["r"]
        assert found.tokens == wanted
        assert found.finish_reason is FinishReason.STOP and found.finals[0].stop_token_id == last
    ignored = run(make_engine(), request("r", PROMPT, max_tokens=20, eos=[last], ignore_eos=True))["r"]
    assert ignored.tokens == whole and ignored.finals[0].stop_token_id is None


def test_stopping_at_the_last_token_counts_as_stop():
    whole = expected_tokens(SPEC, PROMPT, 3)
    found = run(make_engine(), request("r", PROMPT, max_tokens=3, eos=[whole[-1]]))["r"]
    if whole.index(whole[-1]) == 2:
        assert found.finish_reason is FinishReason.STOP


def test_min_tokens_puts_off_the_end():
    first = expected_tokens(SPEC, PROMPT, 1)[0]
    found = run(make_engine(), request("r", PROMPT, max_tokens=9, min_tokens=4, eos=[first]))["r"]
    assert first not in found.tokens[:4] and len(found.tokens) >= 4


def test_max_tokens_defaults_to_the_room_left():
    found = run(make_engine(max_model_len=20), request("r", PROMPT))["r"]
    assert len(found.tokens) == 15 and found.finish_reason is FinishReason.LENGTH


def test_scores_of_the_prompt_match_the_network(monkeypatch):
    monkeypatch.setattr("inference.engine.model_runner.LOGPROBS_SLICE_BYTES", 2 * 4 * VOCAB_SIZE)
    reference = [torch.log_softmax(logits_after(SPEC, PROMPT[: i + 1]), -1) for i in range(len(PROMPT) - 1)]
    for chunk in (8, 1):
        engine = make_engine(max_num_seqs=1, max_num_batched_tokens=chunk)
        found = run(engine, request("r", PROMPT, max_tokens=0, prompt_logprobs=2))["r"]
        assert found.tokens == [] and found.finish_reason is FinishReason.LENGTH
        assert found.prompt_logprobs is not None and len(found.prompt_logprobs) == len(PROMPT) - 1
        for entry, token, log_probs in zip(found.prompt_logprobs, PROMPT[1:], reference, strict=True):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(log_probs[token].item(), abs=1e-5)
            assert entry.rank == 1 + int((log_probs > log_probs[token]).sum())
            assert [value for _, value in entry.top] == pytest.approx(log_probs.topk(2).values.tolist(), abs=1e-5)


def test_prompt_logprobs_come_once_with_the_first_token():
    engine = make_engine()
    engine.add_request(request("r", PROMPT, max_tokens=3, prompt_logprobs=0, logprobs=1))
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [output.prompt_logprobs is not None for output in outputs] == [True, False, False]
    assert [len(output.logprobs or []) for output in outputs] == [1, 1, 1]
    assert outputs[0].logprobs[0].token_id == outputs[0].new_token_ids[0] == outputs[0].logprobs[0].top[0][0]
    single = run(make_engine(), request("one", [4], max_tokens=1, prompt_logprobs=1))["one"]
    assert single.prompt_logprobs == []


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_prompt_logprobs_survive_preemption(steps):
    source = request("r", range(12), priority=5, max_tokens=4, prompt_logprobs=1)
    plain = run(make_engine(), source)["r"]
    engine = make_engine(max_num_batched_tokens=5, max_num_seqs=1)
    engine.add_request(source)
    found: dict = {}
    for _ in range(steps):
        collect(engine.step(), found)
    engine.add_request(request("urgent", [1], max_tokens=1))
    while engine.has_unfinished():
        collect(engine.step(), found)
    assert engine.stats().num_preemptions == 1
    assert found["r"].prompt_logprobs == plain.prompt_logprobs and found["r"].tokens == plain.tokens


def test_max_tokens_0_without_scores_costs_nothing():
    network = FakeNetwork(SPEC)
    found = run(make_engine(network=network), request("r", PROMPT, max_tokens=0))["r"]
    assert found.finish_reason is FinishReason.LENGTH and found.tokens == [] and network.batches == []


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_second_attempt_goes_on_where_the_first_was_cut(temperature):
    options = {
        "max_tokens": 12,
        "temperature": temperature,
        "seed": 99,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "min_tokens": 6,
        "logprobs": 2,
        "eos": [3, 11],
    }
    whole = run(make_engine(), request("r", PROMPT, **options))["r"]
    for cut in range(len(whole.tokens)):
        rest = run(make_engine(), request("r", PROMPT, prior=whole.tokens[:cut], **options))["r"]
        assert rest.tokens == whole.tokens[cut:]
        assert [entry.token_id for entry in rest.logprobs] == rest.tokens
        assert rest.finish_reason is whole.finish_reason


@pytest.mark.parametrize("scores", [None, 1])
def test_a_second_attempt_with_nothing_left_ends_at_once(scores):
    by_length = request("r", PROMPT, prior=[1, 2, 3], max_tokens=3, prompt_logprobs=scores)
    found = run(make_engine(), by_length)["r"]
    assert found.tokens == [] and found.finish_reason is FinishReason.LENGTH
    assert (found.prompt_logprobs is not None) == (scores is not None)
    by_stop = request("r", PROMPT, prior=[1, 2, 3], max_tokens=9, eos=[3], prompt_logprobs=scores)
    found = run(make_engine(), by_stop)["r"]
    assert found.tokens == [] and found.finals[0].stop_token_id == 3


def test_a_seed_gives_the_same_tokens_in_any_batch():
    options = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 15}
    alone = [run(make_engine(), request("r", PROMPT, seed=seed, **options))["r"].tokens for seed in range(6)]
    together = run(
        make_engine(max_num_seqs=4, num_blocks=18),
        *(request(f"r{seed}", PROMPT, seed=seed, **options) for seed in range(6)),
        *(request(f"other{i}", [i], max_tokens=7) for i in range(4)),
    )
    assert [together[f"r{seed}"].tokens for seed in range(6)] == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_stats_count():
    engine = make_engine()
    run(engine, request("a", PROMPT, max_tokens=4), request("b", [1], max_tokens=2))
    stats = engine.stats()
    assert (stats.num_prompt_tokens, stats.num_generated_tokens) == (6, 6)
    assert stats.num_computed_tokens == 5 + 3 + 1 + 1 and stats.num_steps == 4
    assert stats.num_blocks_total == 64 and stats.state_bytes > 0


class TestDoor:
    """Everything that is refused, before it costs anything."""

    @pytest.mark.parametrize(
        "prompt", [(), (VOCAB_SIZE,), (-1,), (2**64,), (1.5,), (True,), ("a",), ((1, 2),), (None,), (2**63,)]
    )
    def test_bad_prompts(self, prompt):
        self.refused(EngineRequest("r", prompt, SamplingParams(temperature=0.0)), InvalidTokenIds)

    @pytest.mark.parametrize(
        ("params", "error"),
        [
            ({"logit_bias": {VOCAB_SIZE: 1.0}}, InvalidTokenIds),
            ({"stop_token_ids": (VOCAB_SIZE,)}, InvalidTokenIds),
            ({"n": 2}, InvalidSamplingParams),
            ({"temperature": 1.0, "seed": None}, InvalidSamplingParams),
            ({"max_tokens": 60}, PromptTooLong),
            ({"max_tokens": 2**24}, PromptTooLong),
            ({"min_tokens": 60}, InvalidSamplingParams),
            ({"prior": [1, 2, 3], "max_tokens": 2}, InvalidRequest),
            ({"prior": [VOCAB_SIZE]}, InvalidTokenIds),
        ],
    )
    def test_bad_parameters(self, params, error):
        self.refused(request("r", PROMPT, **params), error)

    @pytest.mark.parametrize(("length", "max_tokens"), [(64, None), (65, 0), (64, 1)])
    def test_prompts_that_leave_no_room(self, length, max_tokens):
        self.refused(request("r", [1] * length, max_tokens=max_tokens), PromptTooLong)

    def test_a_prompt_of_full_length_can_be_scored(self):
        found = run(make_engine(), request("r", [1] * 64, max_tokens=0, prompt_logprobs=0))["r"]
        assert len(found.prompt_logprobs) == 63

    def test_an_id_in_flight(self):
        engine = make_engine()
        engine.add_request(request("r", PROMPT, max_tokens=2))
        with pytest.raises(Conflict):
            engine.add_request(request("r", PROMPT, max_tokens=2))
        run(engine)
        assert run(engine, request("r", PROMPT, max_tokens=2))["r"].tokens, "a finished id can come again"

    def test_ids_beyond_the_model_among_eos_are_ignored(self):
        assert len(run(make_engine(), request("r", PROMPT, max_tokens=3, eos=[10**6], min_tokens=3))["r"].tokens) == 3

    @pytest.mark.parametrize("kind", ["paged", "slots"])
    def test_a_state_budget_for_nobody(self, kind):
        with pytest.raises(OutOfCacheBlocks):
            make_engine(kind, num_blocks=1, num_state_slots=1)

    def refused(self, source: EngineRequest, error: type) -> None:
        engine: Engine = make_engine()
        with pytest.raises(error) as caught:
            engine.add_request(source)
        assert type(caught.value) is error and len(caught.value.message) < 300
        assert not engine.has_unfinished() and engine.stats().num_prompt_tokens == 0


def test_length_dependent_rotary_embeddings_see_the_prompts_length():
    from inference.modelling.spec import LayerSpec, ModelSpec
    from inference.modelling.specs.layers import AttentionSpec
    from inference.modelling.specs.parts import NormSpec, RopeScaling, RopeSpec

    rope = RopeSpec(10_000.0, 1, scaling=RopeScaling("dynamic", factor=2.0))
    layer = LayerSpec(AttentionSpec(1, 1, 1, 1.0, rope=rope))
    spec = ModelSpec("huggingface", "fake", 2, VOCAB_SIZE, 4096, (layer,), NormSpec())
    seen: dict[int, int] = {}

    class Watching(FakeNetwork):
        def __call__(self, batch, states):
            for position, length in zip(batch.positions.tolist(), batch.rope_lengths.tolist(), strict=True):
                assert seen.setdefault(position, length) == length, "a recomputed token got another length"
            return super().__call__(batch, states)

    engine = make_engine(network=Watching(spec), num_blocks=10, max_num_batched_tokens=8)
    run(engine, *(request(f"r{i}", [1, 2, 3, 4, 5], max_tokens=16) for i in range(3)))
    assert engine.stats().num_preemptions > 0
    assert seen == {position: max(5, position + 1) for position in range(20)}
    assert math.isfinite(sum(seen.values()))
