"""Whether a model would fit: beside whom, without whom, by how much not, and with which sizes instead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import OutOfCacheBlocks
from inference.llm import sizes as sizes_module
from inference.worker.fit import _largest, fit_report, plan_for_fit, with_suggestion
from inference.worker.interfaces import LoadPlan, LoadSizes
from inference.worker.load_plan import plan_load
from inference.worker.resident import Resident
from models_registry.services import checkpoint_register, checkpoint_settings_update
from tests.inference.worker.test_eviction import resident

GIB = 1 << 30


def plan(max_model_len: int = 100, max_num_seqs: int = 4, per_token: int = 1) -> LoadPlan:
    """One byte of state per token and sequence, 10 of weights, at most 600 of states."""
    states = min(max_model_len * max_num_seqs * per_token, 600)
    if states < max_model_len * per_token:
        error = OutOfCacheBlocks("too small")
        error.needed_bytes, error.budget_bytes = max_model_len * per_token, states
        raise error
    parts = {
        "weights_bytes": 10, "states_bytes": states, "full_states_bytes": max_model_len * max_num_seqs,
        "full_sequences": states // max_model_len,
    }  # fmt: skip
    return LoadPlan(
        "a", 10 + states, -1, max_num_seqs, lambda progress: None, sizes=parts,  # type: ignore[arg-type,return-value]
        resized=lambda given: plan(given.max_model_len, given.max_num_seqs),
    )  # fmt: skip


def report(
    requested: LoadSizes, others: Sequence[Resident] = (), *, budget: int = 1000, own: Resident | None = None
) -> dict:
    planned = plan(*requested[:2])
    found = fit_report(planned, others, own, budget_bytes=budget)
    return with_suggestion(found, planned, requested, 0)


def test_what_fits_has_no_advice():
    found = report(LoadSizes(100, 4), [resident("other", 500)])
    assert (found["verdict"], found["missing_bytes"], found["evicts"]) == ("fits", 0, [])
    assert "fitting_num_seqs" not in found


def test_models_that_would_go_are_named_in_order_until_it_fits():
    others = [resident("new", 300, used=2), resident("old", 300, used=1), resident("gone", 300, status="unloading")]
    found = report(LoadSizes(100, 4), others)
    assert (found["verdict"], found["evicts"]) == ("fits_after_eviction", [{"name": "old", "memory_bytes": 300}])
    found = report(LoadSizes(100, 6), [resident("stays", 300, pinned=True), resident("b", 200)])
    assert (found["verdict"], [item["name"] for item in found["evicts"]]) == ("fits_after_eviction", ["b"])


def test_what_is_missing_is_counted_and_the_largest_sizes_that_fit_are_found():
    found = report(LoadSizes(100, 4), [resident("stays", 750, pinned=True)])
    assert (found["verdict"], found["missing_bytes"]) == ("pinned_models_in_the_way", 160)
    assert (found["fitting_num_seqs"], found["fitting_model_len"], found["evicts"]) == (2, 60, [])
    found = report(LoadSizes(100, 4), budget=15)
    assert (found["fitting_num_seqs"], found["fitting_model_len"]) == (None, 1)
    assert report(LoadSizes(100, 4), budget=11)["fitting_model_len"] is None


def test_states_that_hold_fewer_sequences_are_short():
    found = report(LoadSizes(100, 8))
    assert (found["verdict"], found["short_bytes"]) == ("fits", 200)
    assert (found["fitting_num_seqs"], found["fitting_model_len"]) == (6, 75)


def test_a_model_that_is_here_is_compared_as_if_it_came_anew():
    found = report(LoadSizes(100, 4), own=resident("a", 333))
    assert (found["verdict"], found["resident_bytes"], found["missing_bytes"]) == ("resident", 333, 0)
    failed = resident("a", 333, status="failed")
    assert report(LoadSizes(100, 4), own=failed)["verdict"] == "fits"


def test_too_little_memory_for_one_sequence_is_planned_as_one():
    calls = []

    def plans(checkpoint_id: str, sizes: LoadSizes | None = None, /) -> LoadPlan:
        calls.append(sizes)
        assert sizes is not None
        return plan(sizes.max_model_len, sizes.max_num_seqs) if sizes.cache_bytes is None else plan(600, 1)

    planned, missing = plan_for_fit(plans, "a", LoadSizes(1000, 4))
    assert (missing, calls[-1]) == (400, LoadSizes(1000, 1, 1000))
    found = with_suggestion(fit_report(planned, [], None, budget_bytes=9999), planned, LoadSizes(1000, 4), missing)
    assert (found["verdict"], found["missing_bytes"], found["full_sequences"]) == ("too_large", 400, 0)
    assert (found["fitting_num_seqs"], found["fitting_model_len"]) == (None, 150)


@pytest.mark.parametrize("limit", [1, 2, 7, 8])
def test_bisection_finds_the_last_number_that_fits(limit):
    assert _largest(8, lambda number: number <= limit) == limit


@pytest.mark.django_db(transaction=True)  # the plan closes the connection
def test_a_load_reserves_what_the_page_shows(monkeypatch):
    monkeypatch.setattr(sizes_module, "free_memory_bytes", lambda device: 8 * GIB)
    row = checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="demo")
    requested = LoadSizes(200, 5)
    planned, missing = plan_for_fit(lambda *given: plan_load(*given, device="cpu"), str(row.pk), requested)
    shown = with_suggestion(fit_report(planned, [], None, budget_bytes=GIB), planned, requested, missing)
    checkpoint_settings_update(checkpoint=row, values={"max_model_len": 200, "max_num_seqs": 5})
    real = plan_load(str(row.pk), device="cpu")
    assert real.needed_bytes == shown["needed_bytes"], "what the loader reserves"
    llm = real.load(lambda share, stage: None)
    try:
        memory = llm.memory_bytes()
        assert memory["states"] == shown["cache_bytes"] + shown["slots_bytes"] + shown["snapshots_bytes"]
        padding = memory["weights"] - shown["weights_bytes"]  # of packed matrices, as test_loading bounds it
        assert 0 <= padding < 0.1 * row.num_parameters
        assert llm.max_model_len == shown["max_model_len"] == 200
    finally:
        llm.close()
    monkeypatch.setattr(sizes_module, "free_memory_bytes", lambda device: shown["weights_bytes"] + (1 << 16))
    planned, missing = plan_for_fit(lambda *given: plan_load(*given, device="cpu"), str(row.pk), requested)
    found = with_suggestion(fit_report(planned, [], None, budget_bytes=GIB), planned, requested, missing)
    assert found["verdict"] == "too_large" and missing > 0
