"""Adapters that are loaded ahead: by order and with their model, with a reload where the model has no room for any."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from inference.errors import Conflict, InvalidRequest, ModelLoadFailed, Unavailable, UnknownModel
from inference.worker import adapter_orders
from inference.worker.adapters import AdapterFile
from inference.worker.model_manager import ModelManager
from tests.inference.worker.fakes import Client, FakePresence, message, wait_until
from tests.inference.worker.test_adapters import AdaptedLLM, Plans, Registry, Rows

MODEL = message("a")["model"]


class Pinned:
    """The adapters that are loaded with their model."""

    def __init__(self, *ids: str) -> None:
        self.ids = list(ids)
        self.has_database = True
        self.num_calls = 0

    def __call__(self, checkpoint_id: str) -> list[str]:
        found = list(self.ids)
        self.num_calls += 1
        if not self.has_database:
            raise ModelLoadFailed("The database can't be reached; try again.")
        return found


class Made:
    """A manager whose first load has room for adapters, or hasn't."""

    def __init__(self, *, has_room: bool = True, pinned: Pinned | None = None) -> None:
        self.plans = Plans()
        self.plans.make = lambda checkpoint_id: AdaptedLLM(
            Registry(100) if has_room or len(self.plans.loads) > 1 else None
        )
        self.pinned, self.rows = pinned or Pinned(), SomeRows()
        self.manager = ModelManager(
            plan=self.plans, presence=FakePresence(), budget_bytes=100, on_dead=lambda error: None,
            find_adapter=self.rows, pinned_adapters=self.pinned,
        )  # fmt: skip

    def load_model(self) -> Registry:
        num_calls = self.pinned.num_calls
        self.manager.ensure(MODEL)
        wait_until(lambda: self.pinned.num_calls > num_calls)  # what a test changes is for its own orders
        wait_until(lambda: MODEL in self.plans.llms and any(m.status == "ready" for m in self.manager.describe()))
        return self.registry

    @property
    def registry(self) -> Registry:
        found = self.plans.llms[MODEL]
        assert isinstance(found, AdaptedLLM) and found.registry is not None
        return found.registry

    def resident(self) -> list[str]:
        return [item.adapter_id for model in self.manager.describe() for item in model.adapters]


@pytest.fixture
def make():
    made: list[Made] = []

    def build(**options: Any) -> Made:
        made.append(Made(**options))
        return made[-1]

    yield build
    for one in made:
        one.manager.drain(1)


def test_an_adapter_is_loaded_ahead_shown_and_unloaded(make) -> None:
    made = make()
    assert made.manager.load_adapter(MODEL, "k") is None  # the model isn't here
    assert made.manager.unload_adapter(MODEL, "k") is None
    made.load_model()
    made.pinned.ids = ["k", "busy"]  # as their rows say before the worker hears of it
    assert made.manager.unload_adapter(MODEL, "k") is None  # nothing has named it
    assert made.manager.load_adapter(MODEL, "k") == {
        "adapter_id": "k", "memory_bytes": 100, "num_requests": 0, "last_used_at": 7.0, "is_pinned": True,
        "num_workers": 1,
    }  # fmt: skip
    assert made.resident() == ["k"]
    assert made.manager.unload_adapter(MODEL, "k") is None and made.resident() == []
    made.manager.load_adapter(MODEL, "busy")
    left = made.manager.unload_adapter(MODEL, "busy")
    assert left is not None and (left["num_requests"], left["is_pinned"]) == (1, False)
    made.manager.forget_adapter("busy")
    assert made.resident() == [] and "busy" not in made.registry.known


def test_a_model_without_room_is_loaded_again_and_then_has_it(make) -> None:
    made = make(has_room=False, pinned=Pinned("k"))
    made.pinned.ids = []
    made.manager.ensure(MODEL, pinned=True)
    wait_until(lambda: any(model.status == "ready" for model in made.manager.describe()))
    made.pinned.ids = ["k"]  # the row says so before the worker hears of it
    assert made.manager.load_adapter(MODEL, "k") is None
    wait_until(lambda: made.resident() == ["k"])
    assert len(made.plans.loads) == 2 and [model.pinned for model in made.manager.describe()] == [True]
    assert [item.reason for item in made.manager.departures] == ["it is loaded again with room for an adapter"]


@pytest.mark.parametrize("comes", ["before", "after"])
def test_an_adapter_whose_row_lets_it_go_meanwhile_does_not_stay(make, comes: str) -> None:
    made = make()
    registry = made.load_model()
    made.pinned.ids = ["k"]
    step = "add" if comes == "before" else "pin"
    original = getattr(registry, step)

    def carried_out(*values: Any) -> Any:
        made.pinned.ids = []
        return original(*values)

    setattr(registry, step, carried_out)
    assert made.manager.load_adapter(MODEL, "k") is None
    assert made.resident() == [] and len(registry.orders) == (0 if comes == "before" else 2)


def test_what_is_removed_while_a_load_reads_its_files_is_forgotten(make) -> None:
    """The order to forget it comes while the worker doesn't know it yet."""
    made = make()
    registry, rows = made.load_model(), made.rows
    made.pinned.ids = ["k"]
    original = registry.check

    def removed(*values: Any) -> Any:
        rows.removed.add("k")
        made.pinned.ids = []
        made.manager.forget_adapter("k")
        return original(*values)

    registry.check = removed
    with pytest.raises(UnknownModel, match="was removed"):
        made.manager.load_adapter(MODEL, "k")
    assert registry.known == {} and made.resident() == []


def test_two_orders_while_a_request_runs_load_it_again_once_and_pinned(make) -> None:
    made, gate = make(has_room=False), threading.Event()
    build = made.plans.make
    made.plans.make = lambda checkpoint_id: gated(build(checkpoint_id), gate)
    made.manager.ensure(MODEL, pinned=True)
    wait_until(lambda: any(model.status == "ready" for model in made.manager.describe()))
    client = Client()
    made.manager.submit(message("r"), client.on_events)
    wait_until(lambda: made.plans.llms[MODEL].running)
    made.pinned.ids = ["k", "l"]
    for adapter_id in made.pinned.ids:
        assert made.manager.load_adapter(MODEL, adapter_id) is None
    gate.set()
    client.wait("r")
    wait_until(lambda: made.resident() == ["k", "l"])
    assert len(made.plans.loads) == 2 and [model.pinned for model in made.manager.describe()] == [True]


def gated(llm: AdaptedLLM, gate: threading.Event) -> AdaptedLLM:
    llm.gate = gate
    return llm


def test_a_model_that_may_have_none_refuses_and_stays(make) -> None:
    made = make(has_room=False)
    made.plans.adapter_bytes = 0
    made.manager.ensure(MODEL)
    wait_until(lambda: any(model.status == "ready" for model in made.manager.describe()))
    with pytest.raises(InvalidRequest, match="set max_adapters of the model to at least 1"):
        made.manager.load_adapter(MODEL, "k")
    assert len(made.plans.loads) == 1


class SomeRows(Rows):
    """Finds every adapter but those that were removed."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = {"gone"}

    def __call__(self, checkpoint_id: str, adapter_id: str) -> AdapterFile:
        if adapter_id in self.removed:
            raise UnknownModel("The adapter was removed.")
        return super().__call__(checkpoint_id, adapter_id)


def test_those_of_a_model_come_with_each_load_without_a_broken_one(make, caplog) -> None:
    made = make(pinned=Pinned("gone", "k"))
    for number in (1, 2):
        made.load_model()
        wait_until(lambda: made.resident() == ["k"])
        assert caplog.text.count("the adapter gone could not be loaded with its model") == number
        made.manager.unload(MODEL)
        wait_until(lambda: made.manager.describe() == ())


def test_without_a_database_the_model_is_there_alone(make, caplog) -> None:
    pinned = Pinned("k")
    pinned.has_database = False
    made = make(pinned=pinned)
    made.load_model()
    wait_until(lambda: "could not be loaded with it: The database can't be reached" in caplog.text)
    client = Client()
    made.manager.submit(message("r"), client.on_events)
    client.wait("r")
    assert client.events["r"][-1]["type"] == "done"


def test_what_the_engine_refuses_is_the_orders_error(make) -> None:
    made = make()
    registry = made.load_model()
    made.pinned.ids = ["k"]
    registry.error = Conflict("adapters that were loaded ahead (1) leave no place for this one")
    with pytest.raises(Conflict, match="leave no place"):
        made.manager.load_adapter(MODEL, "k")


def test_an_order_that_waits_too_long_is_called_off(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_orders, "PLACE_WAIT_S", 0.05)
    made = make()
    registry = made.load_model()
    made.pinned.ids = ["k"]
    registry.is_stuck = True
    with pytest.raises(Unavailable, match=r"no place in memory after 0\.05 s.*or raise max_adapters"):
        made.manager.load_adapter(MODEL, "k")
    assert registry.orders[-1].cancelled()
    registry.is_slow = True
    with pytest.raises(Unavailable, match=r"still being read after 0\.05 s; try again"):
        made.manager.load_adapter(MODEL, "k")
    assert registry.orders[-1].cancelled()
    with pytest.raises(Unavailable, match=r"present step takes longer than 0\.05 s; the adapter leaves after it"):
        made.manager.unload_adapter(MODEL, "k")
    assert not registry.orders[-1].done()


def test_an_order_to_a_model_that_goes_says_so(make) -> None:
    made = make()
    registry = made.load_model()
    made.pinned.ids = ["k"]
    registry.is_closed = True
    with pytest.raises(Unavailable, match="model is being unloaded; try again once it is loaded"):
        made.manager.load_adapter(MODEL, "k")


def test_those_of_a_model_are_tried_again_while_they_find_no_place(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were given up after 20 tries."""
    monkeypatch.setattr(adapter_orders, "PLACE_WAIT_S", 0.01)
    monkeypatch.setattr(adapter_orders, "RETRY_S", 0.001)
    monkeypatch.setattr(adapter_orders, "MAX_RETRY_S", 0.01)
    made, stuck = make(pinned=Pinned("k")), Registry(100, is_stuck=True)
    made.plans.make = lambda checkpoint_id: AdaptedLLM(stuck)
    made.load_model()
    wait_until(lambda: len(stuck.orders) > 21)
    stuck.is_stuck = False
    wait_until(lambda: made.resident() == ["k"])


def test_a_model_that_goes_meanwhile_is_not_held_in_memory(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_orders, "PLACE_WAIT_S", 0.01)
    monkeypatch.setattr(adapter_orders, "RETRY_S", 2.0)
    made, stuck = make(pinned=Pinned("k")), Registry(100, is_stuck=True)
    made.plans.make = lambda checkpoint_id: AdaptedLLM(stuck)
    made.load_model()
    wait_until(lambda: stuck.orders and stuck.orders[-1].cancelled())  # a pause before the next try
    made.manager.unload(MODEL)
    wait_until(lambda: made.manager.describe() == ())
    llm = weakref.ref(made.plans.llms.pop(MODEL))
    gc.collect()
    assert llm() is None
    stuck.is_stuck = False
    made.load_model()
    wait_until(lambda: made.resident() == ["k"])
