"""ModelManager: loads, evictions, errors, cancels; with an LLM that needs no network."""

from __future__ import annotations

import threading
import time

import pytest

from inference.errors import EngineDead, GenerationFailed, InvalidRequest, ModelLoadFailed
from inference.worker import resident, resident_models
from inference.worker.model_manager import ModelManager
from tests.inference.worker.fakes import Client, FakeLLM, FakePlans, FakePresence, message, wait_until


class Bench:
    def __init__(self, plans: FakePlans, budget: int = 100, min_residence_s: float = 0.0) -> None:
        self.plans = plans
        self.presence = FakePresence()
        self.dead: list[EngineDead] = []
        self.client = Client()
        self.manager = ModelManager(
            plan=plans,
            presence=self.presence,
            budget_bytes=budget,
            on_dead=self.dead.append,
            min_residence_s=min_residence_s,
        )

    def send(self, request_id: str, **members: object) -> None:
        self.manager.submit(message(request_id, **members), self.client.on_events)

    def statuses(self) -> dict[str, str]:
        return {item.checkpoint_id: item.stage or item.status for item in self.manager.describe()}


@pytest.fixture
def bench():
    made: list[Bench] = []

    def make(budget: int = 100, min_residence_s: float = 0.0, **plans: object) -> Bench:
        made.append(Bench(FakePlans(**plans), budget, min_residence_s))
        return made[-1]

    yield make
    for item in made:
        for llm in item.plans.llms.values():
            if llm.gate is not None:
                llm.gate.set()
        item.manager.drain(0)


def test_first_request_loads_the_model_and_is_served(bench):
    b = bench()
    b.send("r")
    b.client.wait("r")
    assert b.client.tokens("r") == [300, 301, 302, 303, 304]
    assert [event["index"] for event in b.client.events["r"]] == list(range(7))
    assert b.presence.calls[0] == ("advertise", "a")
    assert b.presence.ended == [("a", None)]
    assert b.statuses() == {"a": "ready"}
    assert b.manager.num_active == 0


def test_requests_wait_for_one_load(bench):
    gate = threading.Event()
    b = bench(gate=gate)
    for number in range(5):
        b.send(f"r{number}")
    wait_until(lambda: b.statuses() == {"a": "half"})
    (state,) = b.manager.describe()
    assert (state.progress, state.num_waiting, state.num_running) == (0.5, 5, 0)
    gate.set()
    b.client.wait(*(f"r{number}" for number in range(5)))
    assert b.plans.loads == ["a"]


def test_events_of_one_step_come_in_one_call(bench):
    gate = threading.Event()
    b = bench(make=lambda _: FakeLLM(gate=gate))
    for number in range(4):
        b.send(f"r{number}", max_tokens=2)
    wait_until(lambda: "a" in b.plans.llms and len(b.plans.llms["a"].running) >= 1)
    time.sleep(0.05)
    gate.set()
    b.client.wait(*(f"r{number}" for number in range(4)))
    assert max(len({event["request_id"] for event in call}) for call in b.client.calls) > 1


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


def test_refused_and_broken_requests_leave_their_neighbours_alone(bench):
    b = bench()
    b.send("good")
    b.send("refused", text="refuse me")
    b.send("broken", text="break")
    b.client.wait("good", "refused", "broken")
    assert b.client.error("refused").message == "refused as asked."
    assert b.client.error("broken").http_status == 500
    assert len(b.client.tokens("good")) == 5


def test_a_few_token_ids_are_prepared_where_they_arrive(bench):
    b = bench()
    b.send("load")
    b.client.wait("load")
    llm = b.plans.llms["a"]
    prepare, prepared_by = llm.prepare, {}

    def note(request):
        prepared_by[request["request_id"]] = threading.current_thread()
        if request["request_id"] == "refused":
            raise InvalidRequest("refused as asked.", param="prompt")
        return prepare(request)

    llm.prepare = note
    ids = {"token_ids": [1, 2]}
    b.send("here", prompt=ids)
    b.send("refused", prompt=ids)
    b.send("text")
    b.send("many", prompt={"token_ids": [1] * 5000})
    b.send("grammar", prompt=ids, params={"max_tokens": 5, "grammar": {"kind": "regex", "value": "a"}})
    b.send("choices", prompt=ids, params={"max_tokens": 5, "n": 2})
    b.send("echo", prompt=ids, echo=True)
    b.client.wait("here", "refused", "text", "many", "grammar", "choices", "echo")
    here = {name for name, thread in prepared_by.items() if thread is threading.current_thread()}
    assert here == {"here", "refused"}
    assert len(prepared_by) == 7
    assert b.client.events["refused"][-1]["error"]["message"] == "refused as asked."
    assert len(b.client.tokens("here")) == 5


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
    assert b.presence.calls[-1] == ("advertise", "a")


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


@pytest.mark.parametrize("when", ["loading", "running"])
def test_cancel_ends_a_request_once(bench, when):
    gate, load_gate = threading.Event(), threading.Event()
    b = bench(gate=load_gate, make=lambda model: FakeLLM(gate=gate))
    b.send("r")
    if when == "running":
        load_gate.set()
        wait_until(lambda: b.plans.llms.get("a") and b.plans.llms["a"].running)
    assert b.manager.cancel("r")
    assert not b.manager.cancel("r")
    b.client.wait("r")
    load_gate.set()
    gate.set()
    wait_until(lambda: "a" in b.plans.llms and not b.plans.llms["a"].running)
    assert isinstance(b.client.error("r"), GenerationFailed)
    assert b.client.finished == ["r"]
    assert b.manager.num_active == 0


def test_full_model_leaves_messages_to_others_and_comes_back(bench):
    gate = threading.Event()
    b = bench(max_num_seqs=2, make=lambda model: FakeLLM(gate=gate))
    b.send("r0")
    wait_until(lambda: b.statuses() == {"a": "ready"})
    for number in range(1, 4):
        b.send(f"r{number}")
    assert ("pause", "a") in b.presence.calls
    assert ("resume", "a") not in b.presence.calls
    gate.set()
    b.client.wait(*(f"r{number}" for number in range(4)))
    wait_until(lambda: ("resume", "a") in b.presence.calls)


def test_dead_engine_is_reported_and_its_requests_get_no_event(bench):
    b = bench(make=lambda model: FakeLLM(step_s=0.01))
    b.send("r", max_tokens=1000)
    wait_until(lambda: "r" in b.client.events)
    b.plans.llms["a"].die = True
    wait_until(lambda: b.dead)
    assert b.client.finished == []
    assert b.client.events["r"][-1]["type"] == "delta"


def test_drain_lets_requests_end_and_names_the_rest(bench):
    b = bench(make=lambda model: FakeLLM(step_s=0.02))
    b.send("short", max_tokens=5)
    b.send("long", max_tokens=10_000)
    wait_until(lambda: "long" in b.client.events)
    assert b.manager.drain(0.5) == ["long"]
    assert b.client.finished == ["short"]
    assert b.plans.llms["a"].closed


def test_many_loads_and_evictions_under_traffic(bench):
    """500 requests over five models of which two fit: each gets its own model's whole answer."""
    b = bench(budget=25, max_num_seqs=8)
    for number in range(500):
        b.send(f"r{number}", model="abcde"[number * 7 % 5], text="x" * (1 + number % 3), max_tokens=3)
        if number % 25 == 0:
            time.sleep(0.01)
    b.client.wait(*(f"r{number}" for number in range(500)), timeout_s=60)
    for number in range(500):
        base = 100 * (1 + number % 3)
        assert b.client.tokens(f"r{number}") == [base, base + 1, base + 2]
    assert b.manager.memory_bytes <= 25
    assert b.manager.num_active == 0


# --- how long models stay ----------------------------------------------------------------------


def test_two_models_that_do_not_fit_together_never_thrash(bench):
    """Both under constant load: the number of loads follows the clock, not the number of requests."""
    residence_s, run_s = 0.25, 1.5
    b = bench(budget=10, min_residence_s=residence_s)
    started, number = time.monotonic(), 0
    while time.monotonic() - started < run_s or number < 100:
        b.send(f"r{number}", model="ab"[number % 2], max_tokens=1)
        number += 1
        time.sleep(0.005)
    b.client.wait(*(f"r{done}" for done in range(number)), timeout_s=20)
    lasted_s = time.monotonic() - started
    assert all(b.client.tokens(f"r{done}") for done in range(number))
    assert 2 <= len(b.plans.loads) <= lasted_s / residence_s + 2
    for departure in b.manager.departures:
        assert departure.resident_s >= residence_s
        assert "used least recently" in departure.reason


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
    assert [item.reason for item in b.manager.departures] == ["it was not used for 0 s", "it was asked to go"]


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


def test_whether_a_model_fits_is_known_before_its_load(bench):
    b = bench(budget=25)
    assert b.manager.fit("a") == {
        "verdict": "fits", "needed_bytes": 10, "budget_bytes": 25, "used_bytes": 0, "pinned_bytes": 0,
        "max_num_seqs": 4, "weights_bytes": 10,
    }  # fmt: skip
    assert b.plans.loads == []
    b.send("r1", model="a")
    b.client.wait("r1")
    assert b.manager.fit("a")["verdict"] == "resident"
    b.plans.needed = 26
    assert b.manager.fit("b")["verdict"] == "too_large"


def test_running_and_waiting_requests_are_listed(bench):
    gate = threading.Event()
    b = bench(make=lambda _: FakeLLM(gate=gate))
    b.send("r1", owner="key:1")
    wait_until(lambda: "a" in b.plans.llms and b.plans.llms["a"].running)
    b.plans.gate = threading.Event()
    b.send("r2", model="b")
    first, second = b.manager.requests()
    assert (first["id"], first["owner"], first["checkpoint_id"]) == ("r1", "key:1", "a")
    assert (second["id"], second["owner"], second["state"]) == ("r2", "", "waiting")
    gate.set()
    b.plans.gate.set()
    b.client.wait("r1", "r2")
    assert b.manager.requests() == []
