"""Rules that hold for every schedule: what a request generates doesn't depend on what happens around it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inference.engine.request import FinishReason
from tests.inference.engine.fakes import (
    Collected,
    FakeNetwork,
    assert_all_free,
    collect,
    expected_tokens,
    make_engine,
    make_spec,
    request,
)

SCHEDULES_PER_KIND = 75


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
def test_random_schedules_never_change_greedy_tokens(kind):
    """Requests of several callers join, with any priority, are aborted, chunked and preempted, under tiny budgets."""
    spec = make_spec(kind)
    preemptions = aborts = mixed = 0
    for seed in range(SCHEDULES_PER_KIND):
        rng = random.Random(seed)
        network = FakeNetwork(spec)
        max_num_seqs = rng.randint(1, 6)
        budget = rng.randint(max_num_seqs, 16)
        engine = make_engine(
            network=network,
            max_model_len=40,
            block_size=rng.choice([1, 2, 4, 8]),
            num_blocks=rng.choice([42, 50, 70]),
            num_state_slots=rng.randint(2, 7),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
        )
        plans = {}
        for number in range(rng.randint(2, 9)):
            prompt = [rng.randrange(97) for _ in range(rng.randint(1, 20))]
            plans[f"r{number}"] = (
                replace(
                    request(
                        f"r{number}",
                        prompt,
                        priority=rng.choice([0, 0, 0, 1, 7]),
                        max_tokens=rng.randint(1, 40 - len(prompt)),
                        eos=[rng.randrange(97)],
                    ),
                    caller="abc"[number % 3],
                ),
                rng.randint(0, 15),
                rng.randint(1, 30) if rng.random() < 0.2 else None,
            )
        found: dict[str, Collected] = {}
        step = 0
        while step < 16 or engine.has_unfinished():
            for name, (source, joins, leaves) in plans.items():
                if joins == step:
                    engine.add_request(source)
                if leaves == step:
                    aborts += engine.abort_request(name)
            collect(engine.step(), found)
            stats = engine.stats()
            assert stats.num_running <= max_num_seqs
            assert stats.num_blocks_used <= stats.num_blocks_total
            step += 1
            assert step < 3000, "no progress"
        assert all(0 < tokens <= budget for tokens, _ in network.batches)
        mixed += any(0 < decodes < tokens for tokens, decodes in network.batches)
        assert_all_free(engine)
        for name, (source, _, leaves) in plans.items():
            wanted = expected_tokens(spec, source.prompt_token_ids, source.params.max_tokens, source.eos_token_ids)
            entry = found[name]
            if entry.finish_reason is FinishReason.ABORT:
                assert leaves is not None and entry.tokens == wanted[: len(entry.tokens)]
            else:
                assert entry.tokens == wanted, f"schedule {seed}, {name}"
                stopped = wanted[-1] in source.eos_token_ids
                assert entry.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        preemptions += engine.stats().num_preemptions
    # The schedules must contain what they are here to test.
    assert aborts > 10 and mixed > 50
    assert preemptions > (20 if kind != "slots" else 5)
