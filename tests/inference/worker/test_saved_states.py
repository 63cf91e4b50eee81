"""States in the worker: read once for all requests that share one, bounded, and stored off the engine's thread."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest

from inference.errors import InvalidRequest, Unavailable
from inference.llm.state_file import read_state_file
from inference.worker import saved_states
from inference.worker.saved_states import SavedStates
from tests.inference.worker.fakes import wait_until


class State:
    def __init__(self, num_bytes):
        self.num_bytes = num_bytes


class FakeLLM:
    """Counts what is read."""

    def __init__(self):
        self.num_read = 0

    def prepare(self, message):
        return SimpleNamespace(state=None, saved_prompt=SimpleNamespace(token_ids=[1] * message.get("tokens", 2)))

    def prepare_after(self, state, message):
        return SimpleNamespace(**{**vars(self.prepare(message)), "state": state})

    def state_identity(self):
        return None

    def read_state(self, path, source, adapter=None):
        self.num_read += 1
        return State(path.stat().st_size)

    def state_bytes(self, num_tokens):
        return 10 * num_tokens


@pytest.fixture
def llm(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path
    for name in ("MAX_SERVED_BYTES", "MAX_SERVED_FILE_BYTES", "MAX_READ_BYTES", "MAX_WAITING_BYTES"):
        monkeypatch.setattr(saved_states, name, 100)
    for name, size in (("a", 60), ("b", 60), ("c", 40), ("d", 101)):
        (tmp_path / name).write_bytes(b"x" * size)
    return FakeLLM()


def test_requests_share_a_state_and_free_it(llm):
    kept = SavedStates()
    first, second = (kept.prepare(llm, {"state": "a"}) for _ in range(2))
    assert first.state is second.state and llm.num_read == 1
    with pytest.raises(Unavailable, match=r"the states of running requests take 60 B, and 60 B more would exceed"):
        kept.prepare(llm, {"state": "b"})
    other = kept.prepare(llm, {"state": "c"})
    assert other.state.num_bytes == 40
    del first, second
    gc.collect()
    assert kept.prepare(llm, {"state": "b"}).state.num_bytes == 60
    kept.stop()


def test_states_that_can_not_be_read_or_saved(llm):
    kept = SavedStates()
    with pytest.raises(InvalidRequest, match="the state was deleted meanwhile; save it again"):
        kept.prepare(llm, {"state": "gone"})
    with pytest.raises(InvalidRequest, match="the state's file has 101 B, at most 100 B are read"):
        kept.prepare(llm, {"state": "d"})
    with pytest.raises(InvalidRequest, match=r"the state of 11 tokens of this model takes 110 B, at most 100 B"):
        kept.prepare(llm, {"saves_state": {}, "tokens": 11})
    assert kept.prepare(llm, {"saves_state": {}, "tokens": 10}).state is None
    kept.stop()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_messages_have_no_path_of_the_server(settings, tmp_path, is_deleted):
    settings.BLAZR_FILES_DIR = tmp_path
    (tmp_path / "a").write_bytes(b"no state")

    class Reader(FakeLLM):
        def read_state(self, path, source, adapter=None):
            if is_deleted:
                path.unlink()
            return read_state_file(path, None, None, source)

    kept = SavedStates()
    words = "the state was deleted meanwhile" if is_deleted else "the state states a header of"
    with pytest.raises(InvalidRequest, match=words) as refused:
        kept.prepare(Reader(), {"state": "a"})
    assert str(tmp_path) not in refused.value.message
    kept.stop()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_state_that_can_not_be_stored_is_an_error_of_its_request(llm, monkeypatch, is_broken):
    kept, found = SavedStates(), []

    def content(state, *, model):
        raise RuntimeError("broken") if is_broken else InvalidRequest("no room")

    llm.state_content = content
    event = {"request_id": "r", "attempt": 1, "index": 3, "type": "done", "usage": {}, "state": State(1)}
    kept.store(llm, {"request_id": "r", "saves_state": {"model": "demo"}}, event, found.append)
    kept.stop()
    (last,) = found
    assert (last["request_id"], last["attempt"], last["index"], last["type"]) == ("r", 1, 3, "error")
    words = "could not be stored because of an internal error" if is_broken else "no room"
    assert words in last["error"]["message"] and "state" not in last


def test_states_that_wait_to_be_stored_have_a_limit(llm):
    kept, found, gate = SavedStates(), [], threading.Event()

    def content(state, *, model):
        gate.wait(120)
        raise InvalidRequest("no room")

    llm.state_content = content

    def store(name, num_bytes):
        event = {"request_id": name, "attempt": 0, "index": 1, "type": "done", "usage": {}, "state": State(num_bytes)}
        kept.store(llm, {"request_id": name, "saves_state": {"model": "demo"}}, event, found.append)

    store("a", 60)
    store("b", 40)
    store("c", 1)
    assert [event["request_id"] for event in found] == ["c"]
    assert "100 B of states wait to be stored, and 1 B more would exceed 100 B" in found[0]["error"]["message"]
    with pytest.raises(Unavailable, match="100 B of states wait to be stored, and 20 B more would exceed 100 B"):
        kept.prepare(llm, {"saves_state": {}})
    gate.set()
    wait_until(lambda: len(found) == 3)
    assert kept.prepare(llm, {"saves_state": {}}).state is None
    kept.stop()


def test_a_large_model_s_identity_keeps_no_other_model_waiting(llm):
    kept, other, gate = SavedStates(), FakeLLM(), threading.Event()
    other.state_identity = lambda: gate.wait(120)  # reads all weights
    original = other.read_state
    other.read_state = lambda *args, **options: [other.state_identity(), original(*args, **options)][1]
    slow = threading.Thread(target=kept.prepare, args=(other, {"state": "c"}))
    slow.start()
    quick = threading.Thread(target=kept.prepare, args=(llm, {"state": "a"}))
    quick.start()
    quick.join(60)
    was_quick = not quick.is_alive()
    gate.set()
    slow.join()
    assert was_quick
    kept.stop()


@pytest.mark.fault(
    "F69",
    provoked="a worker reads the file of a state, however long that takes, while an engine hands over another to store "
    "and a request comes with a third",
    holds="neither waits; requests with the same state share one reading",
)
def test_nobody_waits_while_a_large_state_is_read(llm):
    """Neither requests with other states nor an engine that hands over a state to store; the same state is shared."""
    kept, gate, started, found = SavedStates(), threading.Event(), threading.Event(), []
    original = llm.read_state

    def read(path, source, adapter=None):
        if path.name == "a":
            started.set()
            gate.wait(120)
        return original(path, source)

    llm.read_state = read
    llm.state_content = lambda state, *, model: (_ for _ in ()).throw(InvalidRequest("no room"))
    both = [threading.Thread(target=lambda: found.append(kept.prepare(llm, {"state": "a"}))) for _ in range(2)]
    for thread in both:
        thread.start()
    assert started.wait(60)
    event = {"request_id": "r", "attempt": 0, "index": 1, "type": "done", "usage": {}, "state": State(1)}
    stored = []

    def others():
        kept.store(llm, {"request_id": "r", "saves_state": {"model": "demo"}}, event, stored.append)
        found.append(kept.prepare(llm, {"state": "c"}))

    quick = threading.Thread(target=others)
    quick.start()
    quick.join(60)
    was_quick, in_use = not quick.is_alive(), kept._bytes_in_use()
    gate.set()
    for thread in (*both, quick):
        thread.join(60)
    assert was_quick and in_use == 100, "the state that is being read counts, too"
    assert llm.num_read == 2 and found[1].state is found[2].state
    kept.stop()


def test_an_error_of_reading_is_that_of_all_who_wait_and_of_nobody_later(llm):
    kept, gate, errors = SavedStates(), threading.Event(), []
    original = llm.read_state

    def read(path, source, adapter=None):
        gate.wait(120)
        raise InvalidRequest("the state is damaged")

    def prepare():
        with pytest.raises(InvalidRequest) as refused:
            kept.prepare(llm, {"state": "a"})
        errors.append(refused.value.message)

    llm.read_state = read
    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: kept._bytes_in_use() == 60)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert errors == ["the state is damaged"] * 2 and kept._bytes_in_use() == 0
    llm.read_state = original
    assert kept.prepare(llm, {"state": "a"}).state.num_bytes == 60
    kept.stop()
