"""Speculation in the engine, on the fake network: the same output as without it, whatever is drafted."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import FinishReason
from inference.engine.speculation import policy
from inference.engine.speculation.setup import Speculation
from inference.errors import InvalidRequest
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.engine.fakes import (
    VOCAB_SIZE,
    FakeNetwork,
    assert_all_free,
    collect,
    logits_after,
    make_engine,
    make_spec,
    request,
    run,
)
from tests.inference.engine.speculation.fakes import Oracle, always, fake_engine, with_oracle

KINDS = ("paged", "slots", "hybrid", "stateless")
SAMPLED = {"temperature": 1.0, "seed": 11}
PARAMS = (
    {},
    SAMPLED,
    SAMPLED | {"top_k": 5, "min_p": 0.01},
    SAMPLED | {"top_p": 0.8, "logit_bias": {3: 2.0, 5: -4.0}},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    SAMPLED | {"presence_penalty": 0.7, "min_tokens": 6, "stop_token_ids": (1, 2, 3, 4)},
    {"logprobs": 3},
    SAMPLED | {"logprobs": 2, "prompt_logprobs": 1, "repetition_penalty": 1.1},
    {"stop_token_ids": tuple(range(0, VOCAB_SIZE, 3))},
)


def many(seed=0, count=16, longest=24):
    rng = random.Random(seed)
    return [
        request(
            f"r{number}",
            [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 20))],
            max_tokens=rng.randint(1 if number % 5 else 12, longest),
            priority=rng.choice([0, 0, 2]),
            **PARAMS[number % len(PARAMS)] if number % 5 else PARAMS[number % len(PARAMS)] | {"min_tokens": 0},
        )
        for number in range(count)
    ]


def facts(found):
    return {
        name: (entry.tokens, entry.logprobs, entry.prompt_logprobs, entry.finish_reason, entry.finals[0].stop_token_id)
        for name, entry in found.items()
    }


def without(kind, sources):
    return facts(run(make_engine(kind), *sources))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 17}])
def test_all_parameters_in_batches_chunks_and_under_preemption(kind, values):
    sources = many()
    wanted = without(kind, sources)
    oracle = Oracle({name: entry[0] for name, entry in wanted.items()}, VOCAB_SIZE)
    engine = with_oracle(fake_engine(kind, **values), oracle)
    found = facts(run(engine, *sources))
    assert found == wanted
    assert found.keys() == {source.request_id for source in sources}
    stats = engine.stats().speculation
    assert stats.num_proposed > stats.num_accepted > 0
    assert all(stats.lengths[:4]), "every length of accepted runs should occur"
    assert stats.num_accepted == sum(length * count for length, count in enumerate(stats.lengths))
    if "num_blocks" in values and kind in ("paged", "hybrid"):
        assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_accepted_draft_tokens_save_steps(kind):
    source = request("r", [1, 2, 3], max_tokens=41)
    wanted = without(kind, [source])
    perfect = Oracle({"r": wanted["r"][0]}, VOCAB_SIZE)
    perfect.rng = type("Never", (), {"random": lambda self: 0.7, "randint": lambda self, low, high: high})()
    engine = with_oracle(fake_engine(kind), perfect)
    assert facts(run(engine, source)) == wanted
    assert engine.stats().num_steps == 1 + 40 // 5
    assert engine.stats().num_computed_tokens == 3 + 40
    assert engine.stats().num_generated_tokens == 41


@pytest.mark.parametrize("kind", ["slots", "hybrid"])
def test_rejected_draft_tokens_cost_one_replay_and_never_more_than_the_limit(kind):
    source = request("r", [1, 2, 3], max_tokens=40)
    wanted = without(kind, [source])
    engine = with_oracle(fake_engine(kind), Oracle({"r": [(token + 1) % VOCAB_SIZE for token in wanted["r"][0]]}, 1))
    most = 0
    engine.add_request(source)
    found = {}
    while engine.has_unfinished():
        collect(engine.step(), found)
        most = max([most, *(item.num_to_replay for item in engine._scheduler.running)])
    assert facts(found) == wanted
    assert 0 < most <= 5
    assert_all_free(engine)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    kind=st.sampled_from(KINDS),
    budget=st.integers(8, 40),
    num_blocks=st.integers(17, 60),
    num_slots=st.integers(2, 9),
    num_spare=st.integers(1, 8),
    num_tokens=st.integers(1, 7),
    max_num_seqs=st.integers(1, 9),
    snapshots=st.integers(0, 6),
)
def test_any_traffic(seed, kind, budget, num_blocks, num_slots, num_spare, num_tokens, max_num_seqs, snapshots):
    """Requests arrive and are aborted at random, with the prefix cache, and the draft tokens are partly right."""
    rng = random.Random(seed)
    sources = many(seed, 10)
    wanted = without(kind, sources)
    engine = fake_engine(
        kind,
        options=always(num_tokens=num_tokens, max_num_seqs=max_num_seqs),
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
        num_state_slots=num_slots,
        num_spare_slots=num_spare,
        num_snapshot_slots=snapshots,
    )
    oracle = Oracle({name: entry[0] for name, entry in wanted.items()}, VOCAB_SIZE, seed)
    with_oracle(engine, oracle)
    for turn in range(2):
        found, queue, aborted = {}, list(sources), set()
        while queue or engine.has_unfinished():
            if queue and (rng.random() < 0.5 or not engine.has_unfinished()):
                engine.add_request(queue.pop(0))
            if rng.random() < 0.05 and found:
                name = rng.choice(list(found))
                if engine.abort_request(name):
                    aborted.add(name)
            collect(engine.step(), found)
        for name, entry in facts(found).items():
            if name in aborted:
                assert entry[0] == wanted[name][0][: len(entry[0])]
                assert entry[3] is FinishReason.ABORT
            else:
                assert entry == wanted[name], turn
        assert_all_free(engine)
    speculator = engine._speculator
    assert speculator._rollback is None or speculator._rollback.num_free == num_spare


def test_an_error_in_an_accepted_run_ends_the_request_there():
    source = request("r", [1, 2, 3], max_tokens=12)
    wanted = without("hybrid", [source])["r"][0]
    engine = fake_engine("hybrid")
    with_oracle(engine, Oracle({"r": wanted}, VOCAB_SIZE, 3))
    poisoned = next(token for token in wanted[4:] if token not in (1, 2, 3, *wanted[:4]))
    engine._runner._network.poison[poisoned] = float("nan")
    found = run(engine, source)["r"]
    assert found.finish_reason is FinishReason.ERROR
    assert found.tokens == wanted[: wanted.index(poisoned) + 1]


def test_a_step_out_of_memory_gives_the_spare_slots_back():
    sources = many(3, 6)
    wanted = without("hybrid", sources)
    engine = fake_engine("hybrid")
    with_oracle(engine, Oracle({name: entry[0] for name, entry in wanted.items()}, VOCAB_SIZE))
    network, calls = engine._runner._network, []

    def sometimes(batch, states):
        calls.append(batch)
        if len(calls) % 7 == 5:
            raise MemoryError
        return network(batch, states)

    engine._runner._network = sometimes
    sometimes.compute_logits = network.compute_logits
    assert facts(run(engine, *sources)) == wanted
    assert engine._speculator._rollback.num_free == 8


def test_a_request_that_ends_while_it_is_preempted_leaves_no_acceptance_rate():
    engine, source = fake_engine("hybrid"), request("r", [5, 6, 7, 8] * 4, max_tokens=40, logit_bias={9: 100.0})
    engine.add_request(source)
    while not engine.stats().speculation.num_proposed:
        engine.step()
    (running,) = engine._scheduler.running
    engine._scheduler.preempt(running)
    engine._speculator.propose([])
    policy_of_engine = engine._speculator._policy
    assert running in policy_of_engine._rates
    engine.abort_request("r")
    engine.step()
    assert not policy_of_engine._rates
    assert not engine._speculator._requests


def test_a_proposer_out_of_memory_costs_draft_tokens_only():
    engine = fake_engine("hybrid", draft_kind="hybrid")
    sources = many(4, 4)

    def fails(*_):
        raise MemoryError

    engine._speculator._proposer._runner._network = fails
    assert facts(run(engine, *sources)) == without("hybrid", sources)
    assert engine.stats().speculation.num_proposed == 0


# --- the proposers -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_ngrams_in_a_text_that_repeats_itself(kind):
    sources = [
        request("a", [5, 6, 7, 8] * 4, max_tokens=30, logit_bias={9: 100.0}),
        request("b", [1, 2] * 5, max_tokens=30, temperature=0.9, seed=4, logit_bias={4: 5.0}),
        *many(7, 6),
    ]
    wanted = without(kind, sources)
    engine = fake_engine(kind)
    assert facts(run(engine, *sources)) == wanted
    assert engine.stats().speculation.num_accepted > 15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_the_policy_changes_no_token(kind, method, monkeypatch):
    """Drafting begins, stops and is probed again, with preemption and replays."""
    monkeypatch.setattr(policy, "PROBE_STEPS", 4)
    sources = [
        *many(11, 8, longest=44),
        request("s", [5, 6, 7, 8] * 4, max_tokens=40, logit_bias={9: 100.0}),
        request("t", [1, 2] * 5, max_tokens=50, logit_bias={4: 100.0}),
    ]
    wanted = without(kind, sources)
    options = SpeculativeOptions(method, "draft" if method == "draft" else "")
    num_proposed = 0
    for num_blocks in (65, 20):
        engine = fake_engine(
            kind, draft_kind=kind if method == "draft" else None, options=options, num_blocks=num_blocks
        )
        for _ in range(3):
            assert facts(run(engine, *sources)) == wanted
            assert_all_free(engine)
        num_proposed += engine.stats().speculation.num_proposed
    assert num_proposed > 0


def test_missing_parts_are_refused():
    spec = make_spec("hybrid")
    with pytest.raises(InvalidRequest, match="num_spare_slots"):
        fake_engine("hybrid", num_spare_slots=0)
    with pytest.raises(InvalidRequest, match="draft model"):
        Engine(
            FakeNetwork(spec),
            spec,
            EngineConfig(64, 65, 9, num_spare_slots=8),
            speculation=Speculation(always("draft")),
        )


# --- the distribution --------------------------------------------------------------------------


@pytest.mark.parametrize("draft_kind", [None, "slots"])
def test_the_distribution_of_verified_positions_is_the_models(draft_kind):
    """Chi-square over many seeds, for a draft that is always the same and for those of another model."""
    prompt, temperature, count = [1, 2, 3], 0.4, 2000
    spec = make_spec("paged")

    def probabilities(tokens):
        return torch.softmax(logits_after(spec, tokens).double() / temperature, -1)

    first = int(probabilities(prompt).argmax())
    second = int(probabilities([*prompt, first]).argmax())
    third = int(probabilities([*prompt, first, second]).argmax())
    engine = fake_engine("paged", draft_kind=draft_kind, max_num_batched_tokens=64)
    if draft_kind is None:
        same = Oracle({f"r{seed}": [first, second, third, third] for seed in range(count)}, VOCAB_SIZE)
        same.rng = type("Never", (), {"random": lambda self: 0.7, "randint": lambda self, low, high: high})()
        with_oracle(engine, same)
    sources = [request(f"r{seed}", prompt, max_tokens=4, temperature=temperature, seed=seed) for seed in range(count)]
    outputs = []
    for first_number in range(0, count, 250):  # each step goes through all that wait
        found = run(engine, *sources[first_number : first_number + 250])
        outputs += [entry.tokens for entry in found.values()]
    assert_fits(Counter(tokens[0] for tokens in outputs), probabilities(prompt))
    begun = [tokens for tokens in outputs if tokens[0] == first]
    assert_fits(Counter(tokens[1] for tokens in begun), probabilities([*prompt, first]))
    begun = [tokens for tokens in begun if tokens[1] == second]
    assert_fits(Counter(tokens[2] for tokens in begun), probabilities([*prompt, first, second]))
    stats = engine.stats().speculation
    assert stats.num_accepted > 50 and stats.num_proposed - stats.num_accepted > 100


def assert_fits(counts, probabilities):
    """Pearson's statistic within five deviations of its mean; rare tokens together."""
    total = sum(counts.values())
    cells = [(counts[token], total * float(p)) for token, p in enumerate(probabilities)]
    common = [cell for cell in cells if cell[1] >= 5]
    rare = [cell for cell in cells if cell[1] < 5]
    if rare:
        common.append((sum(seen for seen, _ in rare), sum(expected for _, expected in rare)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in common if expected)
    freedom = len(common) - 1
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5, (statistic, freedom)
