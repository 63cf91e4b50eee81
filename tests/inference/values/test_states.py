"""States of models and workers: JSON forms, and one state of a model over all workers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inference.values.states import (
    Departure,
    EnergyReading,
    ResidentAdapter,
    ResidentModel,
    WorkerState,
    departures_of,
    merge_models,
)


def test_json_round_trip_leaves_unknown_members_out() -> None:
    model = ResidentModel("a", "ready", adapters=(ResidentAdapter("k", 5),))
    state = WorkerState(
        "w", num_active=1, max_active=4, models=(model,), departures=(Departure("b", "room"),),
        energy=(EnergyReading("boot/0", "box/package-0", "rapl", 5.0, {"a": 2.0}, 1.5, 1.25),), energy_notice="none",
    )  # fmt: skip
    assert WorkerState.from_json(state.to_json()) == state
    values = json.loads(state.to_json()) | {"newer": 1}
    values["models"][0]["newer"] = 2
    values["energy"][0]["newer"] = values["models"][0]["adapters"][0]["newer"] = 3
    assert WorkerState.from_json(json.dumps(values)) == state


def test_a_draining_worker_has_no_capacity() -> None:
    assert WorkerState("w", num_active=1, max_active=4).num_free == 3
    assert WorkerState("w", num_active=5, max_active=4).num_free == 0
    assert WorkerState("w", max_active=4, draining=True).num_free == 0


def test_a_model_has_the_best_status_and_the_sums_of_its_workers() -> None:
    loading = ResidentModel("a", "loading", progress=0.5, stage="reading", memory_bytes=1, num_waiting=2)
    ready = ResidentModel("a", "ready", progress=1.0, memory_bytes=2, num_running=3, last_used_at=9.0, max_model_len=64)
    ready = replace(ready, states_bytes=5, adapter_bytes=7)
    workers = [WorkerState("w1", models=(ready,)), WorkerState("w2", models=(loading, ResidentModel("b", "loading")))]
    merged = merge_models(workers)
    assert set(merged) == {"a", "b"}
    model = merged["a"]
    assert (model.status, model.progress, model.workers) == ("ready", 1.0, ("w1", "w2"))
    assert (model.memory_bytes, model.num_running, model.num_waiting) == (3, 3, 2)
    assert (model.last_used_at, model.max_model_len) == (9.0, 64)
    assert (model.states_bytes, model.shown()["adapter_bytes"]) == (5, 7)
    assert merge_models(reversed(workers))["a"].status == "ready"
    assert "error" not in model.shown() and model.to_dict()["error"] is None


def test_adapters_of_several_workers_are_summed() -> None:
    first = ResidentAdapter("k", 5, num_requests=1, last_used_at=9.0)
    second = ResidentAdapter("k", 6, num_requests=2, last_used_at=8.0, is_pinned=True)
    other = ResidentAdapter("other", 1)
    workers = [
        WorkerState("w1", models=(ResidentModel("a", "ready", adapters=(first, other)),)),
        WorkerState("w2", models=(ResidentModel("a", "ready", adapters=(second,)), ResidentModel("b", "ready"))),
    ]
    merged = merge_models(workers)
    assert merged["a"].adapters == (
        ResidentAdapter("k", 11, num_requests=3, last_used_at=9.0, is_pinned=True, num_workers=2),
        other,
    )
    assert merged["b"].adapters == ()


def test_departures_of_one_model_are_ordered_by_time() -> None:
    workers = [
        WorkerState("w1", departures=(Departure("a", "late", at=5.0), Departure("b", "other", at=1.0))),
        WorkerState("w2", departures=(Departure("a", "early", at=2.0),)),
    ]
    found = departures_of(workers, "a")
    assert [(item["worker_id"], item["reason"]) for item in found] == [("w2", "early"), ("w1", "late")]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (None, "b needed 3 GiB"),
        (frozenset({"a", "b"}), "b needed 3 GiB"),
        (frozenset({"a"}), "another model needed 3 GiB"),
    ],
)
def test_a_departure_names_only_models_that_may_be_named(names: frozenset[str] | None, words: str) -> None:
    worker = WorkerState("w", departures=(Departure("a", "needed 3 GiB", evicted_for="b"),))
    (found,) = departures_of([WorkerState.from_json(worker.to_json())], "a", names)
    assert found["reason"] == words
