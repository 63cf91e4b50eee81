"""Copies of saved states beside an engine's steps: nobody waits for them, and an ended request leaves nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from inference.engine import state_copies
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import FinishReason
from inference.engine.state_copies import StateCopies
from tests.inference.engine.fakes import FakeNetwork, assert_all_free, collect, expected_tokens, make_spec, request, run

SPEC = make_spec("hybrid")
PROMPT = [1, 2, 3, 4, 5] * 20


@pytest.fixture
def engine():
    found = Engine(FakeNetwork(SPEC), SPEC, EngineConfig(200, 40, 5, num_snapshot_slots=4))
    yield found
    found.close()


class Gate:
    """Lets a copy go on behind its first block."""

    def __init__(self, monkeypatch, name):
        self.opened, self.reached = threading.Event(), threading.Event()
        original = getattr(state_copies, name)

        def slow(*args):
            *rest, check = args

            def wait():
                self.reached.set()
                self.opened.wait(60)
                check()

            return original(*rest, wait)

        monkeypatch.setattr(state_copies, name, slow)


def save(prompt):
    return replace(request("save", prompt, max_tokens=0), returns_state=True)


def saved(engine):
    engine.add_request(save(PROMPT))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    return outputs[-1].saved_state


def go_on(state, name="warm"):
    return replace(request(name, [*PROMPT, 6], max_tokens=5), saved_state=state)


def tokens_beside(engine, gate):
    """The tokens of another request while a copy doesn't move."""
    engine.add_request(request("other", [7, 8, 9], max_tokens=12))
    found = {}
    while "other" not in found or not found["other"].finals:
        collect(engine.step(), found)
    assert gate.reached.wait(60) and not gate.opened.is_set()
    assert set(found) == {"other"}
    return found["other"].tokens


@pytest.mark.fault(
    "F69",
    provoked="a state is read out of the engine while another request generates, for as long as twelve steps take",
    holds="the other request gets all its tokens meanwhile; the state is the same as without it",
)
def test_others_go_on_while_a_state_is_read_out(engine, monkeypatch):
    wanted = saved(engine)
    gate = Gate(monkeypatch, "read_state")
    engine.add_request(save(PROMPT))
    assert tokens_beside(engine, gate) == expected_tokens(SPEC, [7, 8, 9], 12)
    assert engine.has_unfinished() and engine.stats().num_blocks_used > 0
    gate.opened.set()
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [("save", FinishReason.LENGTH)]
    assert outputs[0].saved_state.digest == wanted.digest
    assert_all_free(engine)


@pytest.mark.fault(
    "F69",
    provoked="the same while a state is put in its place",
    holds="the other request gets all its tokens meanwhile; the text behind the state is right",
)
def test_others_go_on_while_a_state_is_put_in_its_place(engine, monkeypatch):
    state = saved(engine)
    gate = Gate(monkeypatch, "write_state")
    engine.add_request(go_on(state))
    assert tokens_beside(engine, gate) == expected_tokens(SPEC, [7, 8, 9], 12)
    gate.opened.set()
    found = {}
    while engine.has_unfinished():
        collect(engine.step(), found)
    assert found["warm"].tokens == expected_tokens(SPEC, [*PROMPT, 6], 5)
    assert found["warm"].finals[0].num_cached_tokens == len(PROMPT)
    assert_all_free(engine)


@pytest.mark.parametrize("name", ["read_state", "write_state"])
def test_a_request_that_ends_meanwhile_frees_its_blocks_when_nothing_touches_them(engine, monkeypatch, name):
    state = saved(engine)
    gate = Gate(monkeypatch, name)
    engine.add_request(replace(go_on(state), request_id="r") if name == "write_state" else save(PROMPT))
    request_id = "r" if name == "write_state" else "save"
    while not gate.reached.is_set():
        engine.step()
    ended, found = threading.Event(), []

    def abort():
        found.append(engine.abort_request(request_id))
        ended.set()

    thread = threading.Thread(target=abort)
    thread.start()
    assert not ended.wait(0.2), "the blocks are still written to"
    gate.opened.set()
    thread.join(60)
    assert found == [True]
    outputs = engine.step()
    assert [(output.finish_reason, output.saved_state) for output in outputs] == [(FinishReason.ABORT, None)]
    assert_all_free(engine)
    assert run(engine, go_on(state))["warm"].tokens == expected_tokens(SPEC, [*PROMPT, 6], 5)


def test_requests_of_one_state_are_copied_one_after_the_other(engine):
    state = saved(engine)
    found = run(engine, *(go_on(state, f"r{number}") for number in range(9)))
    assert all(entry.tokens == expected_tokens(SPEC, [*PROMPT, 6], 5) for entry in found.values())


def test_a_copy_that_waits_has_no_part_in_steps(engine, monkeypatch):
    """With nothing else to do the engine waits for it, and doesn't spin."""
    gate = Gate(monkeypatch, "read_state")
    engine.add_request(save(PROMPT))
    threading.Timer(0.3, gate.opened.set).start()
    num_steps = 0
    while engine.has_unfinished():
        engine.step()
        num_steps += 1
    assert num_steps < 30


def test_a_device_copies_at_once(engine):
    copies = StateCopies(engine._copies._access, in_background=False)
    item = object()
    copies.read(item, [1], 1, [1, 2, 3])  # type: ignore[arg-type]
    assert copies and item in copies
    (done,) = copies.take_done()
    assert done.result.result().token_ids == (1, 2, 3) and not copies
    copies.close()


def test_an_engine_that_ends_leaves_no_thread(engine, monkeypatch):
    gate = Gate(monkeypatch, "read_state")
    engine.add_request(save(PROMPT))
    while not gate.reached.is_set():
        engine.step()
    gate.opened.set()
    engine.close()
    assert not engine._copies
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("state-copies")]
