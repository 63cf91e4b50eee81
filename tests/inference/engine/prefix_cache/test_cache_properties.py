"""Whatever is asked in whatever order: with the cache a request's tokens are what they are without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

# Few tokens and stems, so that prompts share beginnings of all lengths.
STEMS = [[1] * 9, [1] * 4 + [2] * 9, [3, 1, 2] * 7, [1, 2, 3, 4, 5] * 4, list(range(30)), [2]]


@st.composite
def plans(draw):
    stem = draw(st.sampled_from(STEMS))
    prompt = stem[: draw(st.integers(1, len(stem)))] + draw(st.lists(st.integers(1, 3), max_size=6))
    return {
        "prompt": prompt,
        "joins": draw(st.integers(0, 25)),
        "leaves": draw(st.one_of(st.none(), st.none(), st.integers(1, 20))),
        "max_tokens": draw(st.integers(1, 48 - len(prompt))),
        "priority": draw(st.sampled_from([0, 0, 1, 5])),
        "salt": draw(st.sampled_from(["", "", "other"])),
        "scored": draw(st.sampled_from([False, False, False, True])),
        "continues": draw(st.booleans()),
    }


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(plans(), min_size=2, max_size=10),
    block_size=st.sampled_from([1, 2, 4, 8]),
    num_blocks=st.sampled_from([50, 60, 120]),
    num_state_slots=st.integers(2, 6),
    num_snapshot_slots=st.sampled_from([1, 2, 4, 40]),
    host_bytes=st.sampled_from([0, 64]),
    budget=st.integers(4, 24),
    reads_later=st.booleans(),
)
def test_tokens_are_those_without_a_cache(
    kind, work, block_size, num_blocks, num_state_slots, num_snapshot_slots, host_bytes, budget, reads_later
):
    network = FakeNetwork(make_spec(kind))
    engine = make_engine(
        network=network,
        max_model_len=50,
        block_size=block_size,
        num_blocks=num_blocks,
        num_state_slots=num_state_slots,
        num_snapshot_slots=num_snapshot_slots,
        snapshot_host_bytes=host_bytes,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
    )
    engine._unusable._reads_later = reads_later  # as on a device
    sources = {}
    for number, plan in enumerate(work):
        prompt = plan["prompt"]
        if plan["continues"] and number:
            # A further turn of an earlier conversation.
            before = sources[f"r{number - 1}"]
            prompt = [
                *before.prompt_token_ids,
                *expected_tokens(network.spec, before.prompt_token_ids, before.params.max_tokens),
            ][:40] + plan["prompt"][:3]
        source = request(
            f"r{number}",
            prompt,
            priority=plan["priority"],
            max_tokens=min(plan["max_tokens"], 50 - len(prompt)),
            **({"prompt_logprobs": 0} if plan["scored"] else {}),
        )
        sources[f"r{number}"] = replace(source, cache_salt=plan["salt"])
    found: dict[str, Collected] = {}
    step = 0
    while step < 27 or engine.has_unfinished():
        for number, plan in enumerate(work):
            if plan["joins"] == step:
                engine.add_request(sources[f"r{number}"])
            if plan["leaves"] is not None and plan["joins"] + plan["leaves"] == step:
                engine.abort_request(f"r{number}")
        collect(engine.step(), found)
        step += 1
        assert step < 3000, "no progress"
    assert_all_free(engine)
    for name, source in sources.items():
        wanted = expected_tokens(network.spec, source.prompt_token_ids, source.params.max_tokens)
        entry = found[name]
        final = entry.finals[0]
        assert 0 <= final.num_cached_tokens < max(len(source.prompt_token_ids), 1)
        if entry.finish_reason is FinishReason.ABORT:
            assert entry.tokens == wanted[: len(entry.tokens)]
        else:
            assert entry.tokens == wanted
            whole = final.num_cached_tokens == len(source.prompt_token_ids) - 1
            assert (final.cache_miss_reason is None) == whole
    check_tree(engine)


def check_tree(engine):
    """When nothing runs: each idle block is one node's, each snapshot is where its node says."""
    cache = engine._prefix_cache
    pool = engine._states.kv.pool
    nodes = list(cache._tree.nodes())
    assert len(nodes) == cache._tree.num_nodes
    blocks = [node.block for node in nodes if node.block]
    assert len(set(blocks)) == len(blocks) == pool.num_idle
    assert all(cache._owners[node.block] is node and 0 < node.rows <= len(node.tokens) for node in nodes if node.block)
    assert len(cache._owners) == len(blocks)
    assert all(node.num_users == 0 for node in nodes)
    store = cache._snapshots
    assert store._num_taken == 0
    kept = [snapshot for node in nodes for snapshot in node.snapshots.values()]
    assert set(kept) == {*store._in_slots, *store._on_host} and len(kept) == len(set(kept))
    slots = [snapshot.slot for snapshot in kept if snapshot.slot] + store._free
    assert len(set(slots)) == len(slots) == store.num_slots
    free = set(engine._states.free_slots)
    assert not free & set(slots) and 0 not in free | set(slots)
    for node in nodes:
        if len(node.tokens) < cache._tree.width:
            assert not node.siblings, "only full nodes have children"
