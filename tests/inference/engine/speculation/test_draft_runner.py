"""DraftRunner: a smaller model drafts, with its own states and little room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.config import EngineConfig
from inference.engine.speculation.draft_runner import DraftModel, DraftRunner
from tests.inference.engine.fakes import FakeNetwork, make_engine, make_spec, request, run
from tests.inference.engine.speculation.fakes import fake_engine
from tests.inference.engine.speculation.test_speculator import KINDS, facts, many, without


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draft_kind", KINDS)
def test_a_draft_model(kind, draft_kind):
    sources = many(8, 12)
    wanted = without(kind, sources)
    engine = fake_engine(kind, draft_kind=draft_kind)
    assert facts(run(engine, *sources)) == wanted
    stats = engine.stats().speculation
    if kind == draft_kind:
        # The same network draws the same tokens, so all draft tokens hold but those behind an end.
        assert stats.num_accepted > 0.8 * stats.num_proposed
    engine._speculator._forget_stopped()
    proposer = engine._speculator._proposer
    assert proposer._states.kv.pool.num_used == 0
    assert len(proposer._states.free_slots) == proposer._states.num_slots - 1
    assert proposer._rollback.num_free == 8
    assert stats.state_bytes == proposer.state_bytes


def test_a_request_with_an_earlier_attempt_is_drafted_for():
    tokens = run(make_engine("paged"), request("r", [1, 2, 3], max_tokens=30))["r"].tokens
    engine = fake_engine("paged", draft_kind="paged")
    second = request("r", [1, 2, 3], max_tokens=30, prior=tokens[:5])
    assert run(engine, second)["r"].tokens == tokens[5:]
    assert engine.stats().speculation.num_accepted > 10


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    kind=st.sampled_from(KINDS),
    num_seqs=st.integers(1, 8),
    num_blocks=st.integers(18, 60),
    budget=st.integers(8, 20),
    max_len=st.integers(30, 64),
)
def test_a_draft_model_with_little_room(seed, kind, num_seqs, num_blocks, budget, max_len):
    sources = many(seed, 8)
    wanted = without(kind, sources)
    engine = fake_engine(kind, draft_kind=kind)
    spec = make_spec(kind)
    network = FakeNetwork(spec)
    network.block_size = 4
    config = EngineConfig(
        max_model_len=max_len,
        num_blocks=num_blocks,
        num_state_slots=num_seqs + 1,
        num_spare_slots=num_seqs,
        block_size=4,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=budget,
    )
    engine._speculator._proposer = DraftRunner(DraftModel(network, spec, config), 4)
    assert facts(run(engine, *sources)) == wanted
