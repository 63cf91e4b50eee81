"""When further requests could start, from the requests that a worker has."""

from __future__ import annotations

import time
from typing import Any

import pytest

from inference.worker.interfaces import LoadPlan
from inference.worker.outlook import record_end, start_outlook
from inference.worker.resident import ActiveRequest, Resident
from inference.worker.service_times import ServiceTimes
from tests.inference.worker.fakes import FakeLLM, message, not_resized


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes within a test."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)


def model(name: str = "a", *, num_seqs: int = 2, **members: Any) -> Resident:
    plan = LoadPlan(name, 1, -1, num_seqs, load=lambda progress: FakeLLM(), resized=not_resized)
    return Resident(name, **{"status": "ready", "plan": plan, **members})


def running(resident: Resident, name: str, *, tokens: int = 11, seconds: float = 5.0, **members: Any) -> ActiveRequest:
    found = ActiveRequest(message(name, max_tokens=21, **members), lambda events: None, resident, in_engine=True)
    found.num_tokens, found.first_token_at = tokens, time.monotonic() - seconds if tokens else 0.0
    return found


def test_running_requests_say_when_their_places_are_free() -> None:
    resident = model()
    requests = [running(resident, "r1"), running(resident, "r2", tokens=6), running(resident, "w1", tokens=0)]
    found = start_outlook(resident, [resident], requests, ["w1", "w2"], {})
    assert found.waiting_ids == ("w1", "w2") and found.num_free == 0
    assert found.free_in_s == pytest.approx((5.0, 15.0), abs=0.1)
    assert found.request_s == pytest.approx((10 + 20) / 2, abs=0.1)
    job = running(resident, "job", priority=1000)
    assert start_outlook(resident, [resident], [job], [], {}).num_free == 4  # interactive requests come first


def test_a_load_counts_from_its_reserved_memory_and_a_swap_from_the_end_of_the_other_requests() -> None:
    times = {"a": ServiceTimes(), "b": ServiceTimes()}
    times["a"].load_s = 10.0
    loading = model(status="loading", plan=None, reserved_at=time.monotonic() - 4.0)
    waits = ActiveRequest(message("r1"), lambda events: None, loading)
    loading.waiting.append(waits)
    found = start_outlook(loading, [loading], [waits], [], times)
    assert (found.waiting_ids, found.load_left_s) == (("r1",), pytest.approx(6.0, abs=0.1))
    leaving = model("b", status="unloading")
    swapping = model(status="loading", plan=None, evicts="b")
    found = start_outlook(swapping, [swapping, leaving], [running(leaving, "r2")], [], times)
    assert (found.evicts, found.load_left_s) == ("b", pytest.approx(15.0, abs=0.1))
    assert start_outlook(model("b", status="loading"), [], [], [], times).load_left_s is None


def test_a_model_that_is_unloaded_first_is_loaded_after_the_end_of_its_requests() -> None:
    times = {"a": ServiceTimes()}
    times["a"].load_s = 10.0
    leaving = model(status="unloading", progress=1.0, reserved_at=time.monotonic() - 60.0, evicts="b")
    waits = ActiveRequest(message("r1"), lambda events: None, leaving)
    leaving.waiting.append(waits)
    found = start_outlook(leaving, [leaving], [running(leaving, "r2"), waits], [], times)
    assert (found.waiting_ids, found.evicts) == (("r1",), "")
    assert found.load_left_s == pytest.approx(5.0 + 10.0, abs=0.1)


def test_the_end_of_a_request_is_recorded_with_its_waits() -> None:
    resident = model(evicts="b", reserved_at=time.monotonic() + 1.0)
    request = running(resident, "r1")
    resident.waiting = [request]
    assert resident.take_waiting() == [request] and not resident.waiting
    request.end_wait("turn")
    usage: Any = {"completion_tokens": 20, "queue_s": 0.0, "ttft_s": 1.0, "duration_s": 4.8}
    times = {"a": ServiceTimes()}
    record_end(request, {"usage": usage}, times)  # type: ignore[typeddict-item]
    assert usage["evicted"] == "b" and usage["waits"]["swap"] == pytest.approx(1.0, abs=0.1)
    assert times["a"].token_s == pytest.approx(0.2)
