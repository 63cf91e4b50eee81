"""Every family in float32: the same tokens with draft tokens and without, however many of them hold."""

from __future__ import annotations

import random

import pytest

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.speculation.setup import Speculation
from tests.inference.engine.fakes import request, run
from tests.inference.engine.prefix_cache.test_cache_networks import network
from tests.inference.engine.speculation.fakes import Oracle, always, draft_of, with_oracle

__all__ = ["network"]
MAX_LEN = 96
VOCAB = 80


def sources():
    rng = random.Random(5)
    stem = [rng.randrange(VOCAB) for _ in range(30)]
    params = (
        {},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.0, "seed": 9, "top_k": 20, "frequency_penalty": 0.4},
    )
    return [
        request(
            f"r{number}",
            (stem[: rng.randrange(30)] if number % 2 else [])
            + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 25))],
            max_tokens=rng.randint(8, 32),
            **params[number % 3],
        )
        for number in range(9)
    ]


def config(**values) -> EngineConfig:
    sizes = {"num_blocks": 300, "num_state_slots": 9, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(max_model_len=MAX_LEN, **(sizes | values))


def outputs(found):
    return {name: (entry.tokens, entry.finish_reason) for name, entry in found.items()}


@pytest.fixture(scope="module")
def wanted(network):
    """Each request alone."""
    found = {}
    for source in sources():
        found |= outputs(run(Engine(network, network.spec, config(max_num_seqs=1, prefix_cache=False)), source))
    assert len({tuple(tokens) for tokens, _ in found.values()}) == len(found), "the networks must have a say"
    return found


def speculating(network, wanted, **values) -> Engine:
    values = {"num_spare_slots": 8} | values
    engine = Engine(network, network.spec, config(**values), speculation=Speculation(always()))
    return with_oracle(engine, Oracle({name: tokens for name, (tokens, _) in wanted.items()}, VOCAB))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 11, "num_snapshot_slots": 12},
        {"num_blocks": 26, "num_state_slots": 4, "num_snapshot_slots": 4},
    ],
    ids=["together", "alone", "chunked", "preempted"],
)
def test_the_same_tokens_as_without(network, wanted, values):
    engine = speculating(network, wanted, **values)
    for _ in range(2):  # the second time with what the prefix cache has kept
        assert outputs(run(engine, *sources())) == wanted
    stats = engine.stats()
    assert all(stats.speculation.lengths), "every length of accepted runs should occur"
    if network.spec.state_bytes_per_token() and "num_blocks" in values:
        assert stats.num_preemptions > 0
    if network.spec.state_bytes_per_sequence() == 0 or "num_snapshot_slots" in values:
        assert stats.prefix_cache.num_hits > 0


def test_ngrams(network, wanted):
    engine = Engine(network, network.spec, config(num_spare_slots=8), speculation=Speculation(always(min_match=1)))
    assert outputs(run(engine, *sources())) == wanted
    assert engine.stats().speculation.num_proposed > 0


def test_itself_as_the_draft_model(network, wanted):
    sizes = config(num_spare_slots=8)
    draft = draft_of(network, sizes)
    engine = Engine(network, network.spec, sizes, speculation=Speculation(always("draft"), draft))
    assert outputs(run(engine, *sources())) == wanted
    stats = engine.stats().speculation
    assert stats.num_accepted > 0.9 * stats.num_proposed > 0
