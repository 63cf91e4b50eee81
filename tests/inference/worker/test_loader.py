"""Loads, evictions and unloads: one load at a time, and no memory is freed under a request."""

from __future__ import annotations

import threading
import time

import pytest

from inference.errors import InvalidRequest, ModelLoadFailed
from inference.worker import loader, resident, resident_models
from tests.inference.worker.fakes import FakeLLM, wait_until


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("no such file."), InvalidRequest),
        (MemoryError(), ModelLoadFailed),
        (RuntimeError("secret detail"), ModelLoadFailed),
    ],
)
def test_load_error_reaches_every_waiting_request_and_is_forgotten(bench, monkeypatch, error, kind):
    monkeypatch.setattr(resident_models, "FAILED_FOR_S", 0.05)
    b = bench(fail={"a": error})
    b.send("r1")
    b.send("r2")
    b.client.wait("r1", "r2")
    assert type(b.client.error("r1")) is type(b.client.error("r2")) is kind
    assert "secret" not in b.client.error("r1").message
    assert b.presence.ended[0][1] is not None
    time.sleep(0.1)
    b.manager.tick()
    assert ("withdraw", "a") in b.presence.calls
    b.plans.fail.clear()
    b.send("r3")
    b.client.wait("r3")
    assert b.client.tokens("r3")


def test_messages_left_in_the_queue_of_a_failed_model_are_answered(bench, monkeypatch):
    monkeypatch.setattr(resident_models, "FAILED_FOR_S", 0.0)
    b = bench(fail={"a": InvalidRequest("no.")})
    b.send("r1")
    b.client.wait("r1")
    b.presence.queued["a"] = 1
    time.sleep(0.01)
    b.manager.tick()
    wait_until(lambda: b.plans.loads == ["a", "a"])


def test_least_recently_used_model_is_evicted(bench):
    b = bench(budget=25)
    for model in ("a", "b"):
        b.send(f"r-{model}", model=model)
        b.client.wait(f"r-{model}")
    b.send("r-a2", model="a")
    b.client.wait("r-a2")
    b.send("r-c", model="c")
    b.client.wait("r-c")
    assert sorted(b.statuses()) == ["a", "c"]
    assert b.plans.llms["b"].closed
    assert ("withdraw", "b") in b.presence.calls
    assert b.manager.memory_bytes == 20


def test_busy_model_is_evicted_only_when_its_requests_have_ended(bench):
    gate = threading.Event()
    b = bench(budget=15, make=lambda model: FakeLLM(gate=gate if model == "a" else None))
    b.send("long", model="a")
    wait_until(lambda: b.plans.llms.get("a") and b.plans.llms["a"].running)
    b.send("other", model="b")
    wait_until(lambda: b.statuses().get("a") == "unloading")
    assert not b.plans.llms["a"].closed
    assert b.plans.loads == ["a"]
    gate.set()
    b.client.wait("long", "other")
    assert len(b.client.tokens("long")) == 5
    assert b.plans.llms["a"].closed
    assert list(b.statuses()) == ["b"]


def while_leaving(bench):
    """A bench whose model "a" is to be unloaded as soon as request "one" has ended, and the gate that lets that end."""
    gate = threading.Event()
    b = bench(make=lambda model: FakeLLM(gate=gate))
    b.send("one")
    wait_until(lambda: b.plans.llms.get("a") and b.plans.llms["a"].running)
    b.manager.unload("a")
    return b, gate


def test_a_request_reports_the_swap_and_the_load_that_it_waited_for(bench):
    gate = threading.Event()
    b = bench(budget=15, make=lambda model: FakeLLM(gate=gate if model == "a" else None))
    b.send("long", model="a")
    wait_until(lambda: "a" in b.plans.llms and b.plans.llms["a"].running)
    b.send("next", model="b")

    def outlook():
        return next(item.outlook for item in b.manager.describe() if item.checkpoint_id == "b")

    wait_until(lambda: outlook().evicts == "a")
    assert outlook().waiting_ids == ("next",) and outlook().load_left_s is None  # b was never loaded
    time.sleep(0.1)
    gate.set()
    b.client.wait("long", "next")
    usage = b.client.events["next"][-1]["usage"]
    assert usage["evicted"] == "a" and usage["waits"]["swap"] > 0.1 and "load" in usage["waits"]
    assert b.client.events["long"][-1]["usage"]["evicted"] == ""
    assert outlook().num_free == 6 and outlook().waiting_ids == ()


def test_request_for_a_model_that_is_leaving_loads_it_again(bench):
    b, gate = while_leaving(bench)
    b.send("two")
    gate.set()
    b.client.wait("one", "two")
    assert b.plans.loads == ["a", "a"]


def test_order_to_load_a_model_that_is_leaving_is_carried_out_after_it_has_left(bench):
    b, gate = while_leaving(bench)
    b.manager.ensure("a")
    gate.set()
    b.client.wait("one")
    wait_until(lambda: b.plans.loads == ["a", "a"] and b.statuses() == {"a": "ready"})
    wait_until(lambda: b.presence.calls[-1] == ("advertise", "a"))  # by another thread than the load


def test_the_last_order_counts_while_a_model_is_leaving(bench):
    b, gate = while_leaving(bench)
    b.manager.ensure("a")
    b.manager.unload("a")
    gate.set()
    b.client.wait("one")
    wait_until(lambda: not b.statuses())
    assert b.plans.loads == ["a"]


def test_pinned_models_stay_and_the_error_says_so(bench):
    b = bench(budget=15)
    b.manager.ensure("a", pinned=True)
    wait_until(lambda: b.statuses() == {"a": "ready"})
    b.send("r", model="b")
    b.client.wait("r")
    assert isinstance(b.client.error("r"), ModelLoadFailed)
    assert "BLAZR_MEMORY_BUDGET" in b.client.error("r").message
    assert list(b.statuses()) == ["a"]


def test_model_larger_than_the_budget_is_refused_with_both_numbers(bench):
    b = bench(budget=5)
    b.send("r")
    b.client.wait("r")
    assert "needs 10 B" in b.client.error("r").message
    assert "5 B" in b.client.error("r").message


def test_keep_alive_unloads_idle_models_only(bench):
    gate = threading.Event()
    gate.set()
    b = bench(keep_alive_s=0.05, make=lambda model: FakeLLM(gate=gate))
    b.send("r")
    b.client.wait("r")
    gate.clear()
    b.send("busy")
    time.sleep(0.1)
    b.manager.tick()
    assert b.statuses() == {"a": "ready"}
    gate.set()
    b.client.wait("busy")
    time.sleep(0.1)
    b.manager.tick()
    wait_until(lambda: b.statuses() == {})


def test_many_loads_and_evictions_under_traffic(bench):
    """200 requests over five models of which two fit: each gets its own model's whole answer."""
    b = bench(budget=25, max_num_seqs=8)
    for number in range(200):
        b.send(f"r{number}", model="abcde"[number * 7 % 5], text="x" * (1 + number % 3), max_tokens=3)
        if number % 25 == 0:
            time.sleep(0.01)
    b.client.wait(*(f"r{number}" for number in range(200)), timeout_s=60)
    for number in range(200):
        base = 100 * (1 + number % 3)
        assert b.client.tokens(f"r{number}") == [base, base + 1, base + 2]
    assert b.manager.memory_bytes <= 25
    assert b.manager.num_active == 0


def test_two_models_that_do_not_fit_together_never_thrash(bench):
    """Both under constant load: the number of loads follows the clock, not the number of requests."""
    residence_s, run_s = 0.25, 1.5
    b = bench(budget=10, min_residence_s=residence_s)
    started, number = time.monotonic(), 0
    while time.monotonic() - started < run_s or number < 100:
        b.send(f"r{number}", model="ab"[number % 2], max_tokens=1)
        number += 1
        time.sleep(0.005)
    b.client.wait(*(f"r{done}" for done in range(number)))
    lasted_s = time.monotonic() - started
    assert all(b.client.tokens(f"r{done}") for done in range(number))
    assert 2 <= len(b.plans.loads) <= lasted_s / residence_s + 2
    for departure in b.manager.departures:
        assert departure.resident_s >= residence_s
        assert "used least recently" in departure.reason and departure.evicted_for in {"a", "b"}


def test_a_model_stays_at_least_as_long_as_its_load_took(bench, monkeypatch):
    monkeypatch.setattr(resident, "MAX_RESIDENCE_S", 0.4)
    b = bench(budget=10, min_residence_s=0.01)

    def slow(checkpoint_id: str) -> FakeLLM:
        time.sleep(0.3 if checkpoint_id == "a" else 0)
        return FakeLLM()

    b.plans.make = slow
    b.send("r1", model="a", max_tokens=1)
    b.client.wait("r1")
    b.send("r2", model="b", max_tokens=1)
    b.client.wait("r2")
    (departure,) = b.manager.departures
    assert departure.checkpoint_id == "a"
    assert departure.resident_s >= 0.3
    assert departure.memory_bytes == 10


def test_orders_and_keep_alive_do_not_wait_for_the_residence(bench):
    b = bench(min_residence_s=60)
    b.send("r1", model="a", keep_alive_s=0)
    b.send("r2", model="b")
    b.client.wait("r1", "r2")
    wait_until(lambda: b.manager.tick() or "a" not in b.statuses())
    b.manager.unload("b")
    wait_until(lambda: not b.statuses())
    assert [item.reason for item in b.manager.departures] == ["it was not used for 0 s", "an unload was requested"]


def test_the_last_request_decides_how_long_the_model_stays(bench):
    b = bench(keep_alive_s=0.05)
    b.send("r1", keep_alive_s=-1)
    b.client.wait("r1")
    time.sleep(0.1)
    b.manager.tick()
    assert b.statuses() == {"a": "ready"}
    (state,) = b.manager.describe()
    assert state.keep_alive_s == -1
    b.send("r2")  # says nothing: as it was
    b.client.wait("r2")
    time.sleep(0.1)
    b.manager.tick()
    assert b.statuses() == {"a": "ready"}
    b.send("r3", keep_alive_s=0)
    b.client.wait("r3")
    wait_until(lambda: b.manager.tick() or not b.statuses())


def test_pinned_by_its_settings_until_asked_to_go(bench):
    b = bench(budget=10, pinned=True)
    b.send("r1", model="a")
    b.client.wait("r1")
    b.send("r2", model="b")
    b.client.wait("r2")
    assert isinstance(b.client.error("r2"), ModelLoadFailed)
    assert b.manager.fit("b")["verdict"] == "pinned_models_in_the_way"
    assert b.manager.set_pinned("a", False)
    assert not b.manager.set_pinned("c", True)
    assert b.manager.fit("b")["verdict"] == "fits_after_eviction"


def test_loader_and_manager_call_nothing_with_the_lock_held(bench, monkeypatch):
    """Only pause and resume may be ordered under it: a call that waits for Redis or for a client would stop all."""
    b = bench(budget=10, keep_alive_s=0.0, fail={"c": InvalidRequest("no.")})
    monkeypatch.setattr(resident_models, "FAILED_FOR_S", 0.0)
    held: list[str] = []

    def check(owner: object, name: str) -> None:
        called = getattr(owner, name)

        def checked(*args, **kwargs):
            if b.manager._residents._condition._is_owned():
                held.append(name)
            return called(*args, **kwargs)

        monkeypatch.setattr(owner, name, checked)

    for name in ("advertise", "withdraw", "load_ended", "changed"):
        check(b.presence, name)
    check(b.client, "on_events")
    check(b.plans, "make")
    for number, model in enumerate("abacab"):
        b.send(f"r{number}", model=model)
        b.client.wait(f"r{number}")
    b.manager.ensure("a", pinned=True)
    wait_until(lambda: b.statuses().get("a") == "ready")
    b.manager.set_pinned("a", False)
    b.manager.unload("a")
    wait_until(lambda: b.manager.tick() or not b.statuses())
    assert b.presence.calls
    assert held == []


def test_a_load_that_comes_while_the_worker_stops_starts_nothing(bench):
    gate = threading.Event()
    b = bench(gate=gate)
    b.send("r")
    wait_until(lambda: b.statuses() == {"a": "half"})
    assert b.manager.drain(0) == ["r"]
    gate.set()
    wait_until(lambda: "a" in b.plans.llms)
    time.sleep(0.05)
    assert b.plans.llms["a"].seen == []
    assert b.client.events == {}


def test_models_in_the_way_that_do_not_end_in_time_fail_the_load(bench, monkeypatch):
    monkeypatch.setattr(loader, "EVICTION_WAIT_S", 0.1)
    gate = threading.Event()
    b = bench(budget=10, make=lambda model: FakeLLM(gate=gate if model == "a" else None))
    b.send("long", model="a")
    wait_until(lambda: b.plans.llms.get("a") and b.plans.llms["a"].running)
    b.send("other", model="b")
    b.client.wait("other")
    assert (type(b.client.error("other")), b.client.error("other").retry_after_s) == (ModelLoadFailed, 10)
    gate.set()
    b.client.wait("long")
    assert len(b.client.tokens("long")) == 5
