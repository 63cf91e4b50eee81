"""ModelManager: requests into engines, events out, cancels, orders; with an LLM that needs no network."""

from __future__ import annotations

import threading
import time

import pytest

from inference.errors import GenerationFailed, InvalidRequest
from inference.worker.saved_states import SavedStates
from tests.inference.worker.fakes import FakeLLM, message, wait_until


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
    class Together(FakeLLM):
        """Begins when it has all requests."""

        def step(self):
            if len(self.seen) == 4:
                return super().step()
            time.sleep(0.001)
            return []

    b = bench(make=lambda _: Together())
    for number in range(4):
        b.send(f"r{number}", max_tokens=2)
    b.client.wait(*(f"r{number}" for number in range(4)))
    assert max(len({event["request_id"] for event in call}) for call in b.client.calls) > 1


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


def test_a_request_that_runs_alone_starts_when_its_owner_is_ready(bench):
    b = bench()
    turns: list[str] = []
    b.manager.submit(message("job", alone_tokens=2, priority=1000), b.client.on_events, turns.append)
    wait_until(lambda: turns == ["job"])
    assert b.presence.calls[-1] == ("alone", "job")
    b.send("client")
    time.sleep(0.05)
    assert b.client.finished == []
    b.manager.start_alone("job")
    b.client.wait("job", "client")
    b.manager.submit(message("cancelled", alone_tokens=2), b.client.on_events, turns.append)
    wait_until(lambda: turns == ["job", "cancelled"])
    b.manager.cancel("cancelled")
    b.manager.start_alone("cancelled")
    assert b.client.finished[-1] == "cancelled"
    b.send("next")
    b.client.wait("next")
    assert "cancelled" not in {item["request_id"] for item in b.plans.llms["a"].seen}


def test_dead_engine_is_reported_and_its_requests_get_no_event(bench):
    b = bench(make=lambda model: FakeLLM(step_s=0.01))
    b.send("r", max_tokens=100_000)
    wait_until(lambda: "r" in b.client.events)
    b.plans.llms["a"].die = True
    wait_until(lambda: b.dead)
    assert b.client.finished == []
    assert b.client.events["r"][-1]["type"] == "delta"


def test_drain_lets_requests_end_and_names_the_rest(bench, monkeypatch):
    b = bench(make=lambda model: FakeLLM(step_s=0.02))
    b.send("short", max_tokens=5)
    b.send("long", max_tokens=100_000)
    wait_until(lambda: "long" in b.client.events)
    condition = b.manager._residents._condition
    wait_for = condition.wait_for

    def wait_longer(predicate, timeout_s):
        """For as long as a busy machine takes for the short one, too."""
        while not (b.client.finished or wait_for(predicate, 0.01)):
            pass
        return wait_for(predicate, timeout_s)

    monkeypatch.setattr(condition, "wait_for", wait_longer)
    assert b.manager.drain(0.2) == ["long"]
    assert b.client.finished == ["short"]
    assert b.plans.llms["a"].closed


def test_whether_a_model_fits_is_known_before_its_load(bench):
    b = bench(budget=25)
    assert b.manager.fit("a") == {
        "verdict": "fits", "needed_bytes": 10, "budget_bytes": 25, "used_bytes": 0, "pinned_bytes": 0,
        "resident_bytes": 0, "missing_bytes": 0, "evicts": [], "adapter_bytes": 0, "draft_bytes": 0, "max_num_seqs": 4,
        "weights_bytes": 10,
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


class SavingLLM(FakeLLM):
    """Leaves a state with each last event."""

    def step(self):
        events = super().step()
        return [event | {"state": "bytes"} if event["type"] == "done" else event for event in events]


def test_a_state_that_is_stored_at_once_ends_its_request_behind_its_other_events(bench, monkeypatch):
    def store(self, llm, message, event, then):
        assert event.pop("state") == "bytes"
        then(event)

    monkeypatch.setattr(SavedStates, "store", store)
    b = bench(make=lambda _: SavingLLM())
    b.send("r", max_tokens=1)
    b.client.wait("r")
    assert [event["type"] for event in b.client.events["r"]] == ["start", "delta", "done"]
