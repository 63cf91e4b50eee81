"""Who gets the free places: examples, and rules that hold for every input."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.batches.policy import Candidate, Share, can_swap, shares

A, B = "model a", "model b"


def candidate(key: int, tenant: str = "t", priority: int = 0, models: str = A, **values: Any) -> Candidate:
    values = {"seconds_left": 86_400.0, **values}
    return Candidate(key, tenant, priority, frozenset({models}), **values)


def divide(candidates, num_free=10, running=None, resident=(A,), swap_allowed=False) -> list[Share]:
    return shares(
        candidates, num_free=num_free, running=running or {}, resident=frozenset(resident), swap_allowed=swap_allowed
    )


def keys(found: list[Share]) -> dict[int, int]:
    return {share.key: share.count for share in found}


def test_one_tenant_finishes_its_older_batch_first():
    assert keys(divide([candidate(2), candidate(1)])) == {1: 10}


def test_tenants_share_alike_whatever_they_have_submitted():
    found = divide([candidate(1, "x"), candidate(2, "x"), candidate(3, "y")])
    assert keys(found) == {1: 5, 3: 5}


def test_what_runs_already_counts():
    assert keys(divide([candidate(1, "x"), candidate(2, "y")], running={"x": 6})) == {1: 2, 2: 8}


def test_priority_comes_before_everything():
    found = divide([candidate(1, models=A), candidate(2, priority=-1, models=B)])
    assert keys(found) == {2: 10}


def test_a_batch_that_would_miss_its_deadline_goes_first():
    calm = candidate(1)
    assert keys(divide([calm, candidate(2, seconds_left=50)])) == {2: 10}
    assert keys(divide([calm, candidate(2, seconds_left=900, seconds_needed=500)])) == {2: 10}
    assert keys(divide([calm, candidate(2, seconds_left=900, seconds_needed=100)])) == {1: 10}


def test_models_that_are_here_go_first_until_a_swap_pays():
    here, elsewhere = candidate(2, "x", models=A), candidate(1, "y", models=B)
    assert keys(divide([here, elsewhere])) == {2: 10}
    assert keys(divide([here, elsewhere], swap_allowed=True)) == {1: 5, 2: 5}
    assert keys(divide([elsewhere])) == {1: 10}


def test_of_a_mixed_batch_only_the_lines_of_models_that_are_here():
    mixed = Candidate(1, "t", 0, frozenset({A, B}), 86_400.0)
    assert divide([mixed])[0].checkpoint_ids == {A}
    assert divide([mixed], swap_allowed=True)[0].checkpoint_ids is None
    assert divide([mixed], resident=())[0].checkpoint_ids is None


def test_swaps_take_a_tenth_of_the_time_at_most():
    assert can_swap((), stayed_s=0, load_s=100)
    assert not can_swap((A,), stayed_s=29, load_s=1)
    assert can_swap((A,), stayed_s=31, load_s=1)
    assert not can_swap((A,), stayed_s=900, load_s=100)
    assert can_swap((A,), stayed_s=1000, load_s=100)


candidates = st.lists(
    st.builds(
        candidate,
        st.integers(1, 1000),
        st.sampled_from("xyz"),
        st.integers(-2, 2),
        st.sampled_from((A, B)),
        seconds_left=st.floats(-10, 100_000),
        seconds_needed=st.floats(0, 1000),
    ),
    max_size=8,
    unique_by=lambda item: item.key,
)


@given(candidates, st.integers(0, 50), st.booleans(), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 20)))
def test_all_the_room_goes_to_batches_of_the_best_rank(found, num_free, swap_allowed, running):
    divided = divide(found, num_free=num_free, swap_allowed=swap_allowed, running=running)
    assert sum(share.count for share in divided) == (num_free if found else 0)
    assert len({share.key for share in divided}) == len(divided)
    if divided:
        best = min(item.priority for item in found)
        chosen = {item.key: item for item in found}
        assert all(chosen[share.key].priority == best for share in divided)


@given(candidates, st.integers(1, 50))
def test_nobody_of_equal_rank_gets_two_more_than_another(found, num_free):
    divided = divide(found, num_free=num_free, swap_allowed=True)
    if not divided:
        return
    tenants = {item.key: item.tenant for item in found}
    counts = [share.count for share in divided]
    assert len({tenants[share.key] for share in divided}) == len(divided)
    assert max(counts) - min(counts) <= 1
