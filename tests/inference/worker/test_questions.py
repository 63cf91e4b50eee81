"""Questions on the control stream are answered in Redis, in plain values, without holding the stream up."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import BlazrError, CorruptCheckpoint, UnknownModel
from inference.transport import keys as redis_keys
from inference.worker.interfaces import LoadSizes
from inference.worker.questions import Questions
from tests.inference.worker.fakes import wait_until


class Manager:
    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.is_loading = False
        self.gate = threading.Event()
        self.gate.set()

    def requests(self) -> list[dict[str, Any]]:
        return [{"id": "r", "tokens": 3}]

    def fit(self, checkpoint_id: str, requested: LoadSizes | None = None) -> dict[str, Any]:
        self.requested = requested
        self.gate.wait(60)
        if checkpoint_id == "unknown":
            raise UnknownModel("There is no such model.")
        if checkpoint_id == "broken":
            raise RuntimeError("secret detail")
        return {"verdict": "fits", "needed_bytes": 7}

    def load_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        self.is_loading = True
        self.gate.wait(60)
        if adapter_id == "bad":
            raise CorruptCheckpoint("The file is cut off.")
        self.loaded.append(adapter_id)
        return {"adapter_id": adapter_id}

    def unload_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        return None


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def ask(client, manager):
    questions = Questions(client, "questions-test", manager)
    keys: list[str] = []

    def put(kind: str, **members: Any) -> Any:
        question_id = f"question-{len(keys)}"
        keys.append(redis_keys.replies(question_id))
        client.delete(keys[-1])
        questions.take(json.dumps({"id": question_id, "kind": kind, **members}))
        return keys[-1]

    yield put
    questions.stop()
    client.delete(*keys)


def answer(client, key: str) -> dict[str, Any]:
    wait_until(lambda: client.llen(key))
    assert 0 < client.ttl(key) <= redis_keys.REPLIES_EXPIRE_S
    found: dict[str, Any] = json.loads(client.lindex(key, 0))
    assert found.pop("worker_id") == "questions-test"
    return found


def test_requests_and_fit_are_answered(client, ask, manager):
    assert answer(client, ask("requests")) == {"requests": [{"id": "r", "tokens": 3}]}
    assert answer(client, ask("fit", checkpoint_id="a")) == {"fit": {"verdict": "fits", "needed_bytes": 7}}
    assert manager.requested is None


def test_sizes_come_with_the_question(client, ask, manager):
    assert answer(client, ask("fit", checkpoint_id="a", sizes=[64, 3]))["fit"]["verdict"] == "fits"
    assert manager.requested == LoadSizes(max_model_len=64, max_num_seqs=3)


def test_an_error_is_an_answer_with_its_class(client, ask):
    found = answer(client, ask("fit", checkpoint_id="unknown"))
    error = BlazrError.from_dict(found["error"])
    assert (type(error), error.message) == (UnknownModel, "There is no such model.")


def test_an_internal_error_is_no_answer_and_the_next_question_gets_one(client, ask):
    broken = ask("fit", checkpoint_id="broken")
    assert answer(client, ask("requests")) == {"requests": [{"id": "r", "tokens": 3}]}
    assert client.llen(broken) == 0


def test_a_slow_answer_does_not_hold_the_asking_thread(client, ask, manager):
    manager.gate.clear()
    key = ask("fit", checkpoint_id="a")  # returns although the answer waits
    assert client.llen(key) == 0
    manager.gate.set()
    assert answer(client, key)["fit"]["verdict"] == "fits"


def test_orders_for_adapters_are_carried_out_beside_queries(client, ask, manager):
    manager.gate.clear()
    slow = ask("load-adapter", checkpoint_id="a", adapter_id="k")
    assert answer(client, ask("requests")) == {"requests": [{"id": "r", "tokens": 3}]}
    manager.gate.set()
    assert answer(client, slow) == {"adapter": {"adapter_id": "k"}}
    assert answer(client, ask("unload-adapter", checkpoint_id="a", adapter_id="k")) == {"adapter": None}
    found = answer(client, ask("load-adapter", checkpoint_id="a", adapter_id="bad"))
    assert isinstance(BlazrError.from_dict(found["error"]), CorruptCheckpoint)


def test_an_order_for_which_nobody_waits_any_more_is_dropped(client, ask, manager, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("inference.worker.questions.time", SimpleNamespace(time=lambda: now))
    manager.gate.clear()
    first = ask("load-adapter", checkpoint_id="a", adapter_id="k", expires_at=1060.0)
    late = ask("load-adapter", checkpoint_id="a", adapter_id="l", expires_at=1060.0)
    wait_until(lambda: manager.is_loading)  # the first one holds the thread
    now = 1061.0
    manager.gate.set()
    answer(client, first)
    answer(client, ask("load-adapter", checkpoint_id="a", adapter_id="m", expires_at=1062.0))
    assert client.llen(late) == 0 and manager.loaded == ["k", "m"]
