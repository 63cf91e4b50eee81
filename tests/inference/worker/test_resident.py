"""A model and its requests, as people see them; and for how long the model stays."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from inference.errors import InvalidRequest
from inference.values.plan import JOB_PRIORITY
from inference.worker.interfaces import LoadPlan
from inference.worker.resident import MAX_RESIDENCE_S, RATE_WINDOW_S, ActiveRequest, Resident
from tests.inference.worker.fakes import FakeLLM, message, not_resized


def plan(keep_alive_s: float = -1, max_num_seqs: int = 2) -> LoadPlan:
    return LoadPlan("served-name", 10, keep_alive_s, max_num_seqs, lambda progress: FakeLLM(), resized=not_resized)


def test_a_model_has_its_served_name_once_it_is_known():
    resident = Resident("checkpoint-id")
    assert resident.name == "checkpoint-id"
    resident.plan = plan()
    assert resident.name == "served-name"


@pytest.mark.parametrize(
    ("status", "shown", "stage"),
    [("loading", "loading", "waiting"), ("ready", "ready", "waiting"), ("unloading", "ready", "unloading")],
)
def test_statuses_as_people_see_them(status, shown, stage):
    found = Resident("a", status=status).describe()
    assert (found.status, found.stage) == (shown, stage)


def test_requests_beyond_the_engines_slots_wait():
    resident = Resident("a", plan=plan(max_num_seqs=2), num_in_engine=5)
    resident.waiting.append(ActiveRequest(message("r"), print, resident))
    found = resident.describe()
    assert (found.num_running, found.num_waiting) == (2, 4)


def test_reserves_for_states_and_adapters_are_reported_apart():
    llm = SimpleNamespace(memory_bytes=lambda: {"weights": 1, "states": 20, "adapters": 300})
    found = Resident("a", engine=SimpleNamespace(llm=llm), memory_bytes=321).describe()
    assert (found.memory_bytes, found.states_bytes, found.adapter_bytes) == (321, 20, 300)
    assert Resident("a").describe().adapter_bytes == 0


def test_the_rate_is_of_the_last_seconds(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    resident = Resident("a")
    resident.token_counts.extend([(now - RATE_WINDOW_S - 1, 1000), (now - 1, 10), (now, 5)])
    assert resident.describe().tokens_per_s == 15 / RATE_WINDOW_S
    assert len(resident.token_counts) == 2


@pytest.mark.parametrize(
    ("own", "pinned", "expected"), [(None, False, 30), (5, False, 5), (0, False, 0), (-1, False, -1), (5, True, -1)]
)
def test_the_keep_alive_time_is_the_last_requests_else_the_models(own, pinned, expected):
    resident = Resident("a", plan=plan(keep_alive_s=30), keep_alive_s=own, pinned=pinned)
    assert resident.effective_keep_alive_s == expected
    assert Resident("a", keep_alive_s=own).effective_keep_alive_s == -1  # its load hasn't ended


def test_only_ready_and_idle_models_expire():
    now = time.monotonic()
    values = {"plan": plan(keep_alive_s=10), "status": "ready", "last_used": now - 11}
    assert Resident("a", **values).is_expired(now)
    assert not Resident("a", **values | {"last_used": now - 9}).is_expired(now)
    assert not Resident("a", **values, num_in_engine=1).is_expired(now)
    assert not Resident("a", **values, pinned=True).is_expired(now)
    assert not Resident("a", **values | {"status": "unloading"}).is_expired(now)
    assert not Resident("a", **values, keep_alive_s=-1).is_expired(now)


def test_a_slow_load_keeps_its_model_for_as_long_as_it_took_within_limits():
    assert Resident("a", ready_at=100.0, load_s=5.0).stays_until(0.0) == 0.0
    assert Resident("a", ready_at=100.0, load_s=5.0).stays_until(2.0) == 105.0
    assert Resident("a", ready_at=100.0, load_s=5.0).stays_until(9.0) == 109.0
    assert Resident("a", ready_at=100.0, load_s=1e6).stays_until(2.0) == 100.0 + MAX_RESIDENCE_S


def test_a_failed_load_is_remembered_as_failed_while_it_is_removed():
    assert not Resident("a").has_failed
    assert Resident("a", status="failed").has_failed
    assert Resident("a", status="unloading", error=InvalidRequest("no.")).has_failed


def test_jobs_are_not_interactive_whatever_their_own_priority():
    def request(priority: int) -> ActiveRequest:
        return ActiveRequest(message("r", priority=priority, owner="key:1"), print, Resident("a"))

    assert [request(priority).is_interactive for priority in (-100, 0, 100)] == [True] * 3
    assert [request(JOB_PRIORITY + priority).is_interactive for priority in (-100, 0, 100)] == [False] * 3
    found = request(0)
    assert found.describe() == {
        "id": "r", "owner": "key:1", "checkpoint_id": "a", "state": "waiting", "tokens": 0,
        "received_at": found.received_at,
    }  # fmt: skip
    found.next_index, found.num_tokens = 1, 4
    assert (found.describe()["state"], found.describe()["tokens"]) == ("running", 4)
