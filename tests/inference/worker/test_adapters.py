"""Adapters that requests name: found once, checked, fitted in by a reload, forgotten."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import (
    BlazrError,
    CheckpointError,
    ChecksumMismatch,
    CorruptCheckpoint,
    InvalidRequest,
    UnknownModel,
)
from inference.values.states import ResidentAdapter
from inference.worker.adapters import (
    AdapterFile,
    NeedsReload,
    ServedAdapters,
    knows,
    no_adapters,
    resident_adapters,
)
from inference.worker.model_manager import ModelManager
from tests.inference.worker.fakes import Client, FakeLLM, FakePlans, FakePresence, message


@dataclass
class Registry:
    """Adapters of 100 bytes each whose digest is their path; orders are carried out at once, unless it is stuck."""

    budget_bytes: int | None = None
    known: dict[str, Path] = field(default_factory=dict)
    resident: dict[str, bool] = field(default_factory=dict)
    orders: list[Future[None]] = field(default_factory=list)
    error: BlazrError | None = None
    is_stuck: bool = False
    is_slow: bool = False
    is_closed: bool = False

    def check(self, path: Path, name: str) -> Any:
        return SimpleNamespace(digest=str(path), num_bytes=100)

    def add(self, name: str, path: Path) -> None:
        self.known[name] = path

    def get(self, name: str) -> Path:
        if name not in self.known:
            raise UnknownModel(name)
        return self.known[name]

    def remove(self, name: str) -> None:
        del self.known[name]
        self.resident.pop(name, None)

    def facts(self) -> dict[str, Any]:
        def facts(name: str) -> Any:
            found = {"num_requests": int(name == "busy"), "last_used_at": 7.0, "is_pinned": self.resident.get(name)}
            return SimpleNamespace(num_bytes=100, is_resident=name in self.resident, **found)

        return {name: facts(name) for name in self.known}

    def is_being_read(self, name: str) -> bool:
        return self.is_slow

    def pin(self, name: str) -> Future[None]:
        self.get(name)
        if self.error is None and not self.is_stuck:
            self.resident[name] = True
        return self._ordered()

    def unpin(self, name: str) -> Future[None]:
        self.resident.pop(name, None)
        if name == "busy":
            self.resident[name] = False
        return self._ordered()

    def _ordered(self) -> Future[None]:
        self.orders.append(Future())
        if self.is_closed:
            self.orders[-1].cancel()
        elif self.error is not None:
            self.orders[-1].set_exception(self.error)
        elif not self.is_stuck:
            self.orders[-1].set_result(None)
        return self.orders[-1]


class AdaptedLLM(FakeLLM):
    def __init__(self, registry: Registry | None) -> None:
        super().__init__()
        self.registry = registry

    @property
    def adapters(self) -> Registry:
        if self.registry is None:
            raise InvalidRequest("no room")
        return self.registry


class Rows:
    """Finds every adapter, and counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, checkpoint_id: str, adapter_id: str) -> AdapterFile:
        self.asked.append((checkpoint_id, adapter_id))
        return AdapterFile("sql", Path(f"/{adapter_id}"), f"/{adapter_id}")


def test_an_adapter_is_found_once() -> None:
    rows, llm = Rows(), AdaptedLLM(Registry())
    adapters = ServedAdapters(rows)
    for _ in range(2):
        adapters.ensure(llm, message("a", adapter="k"))
    adapters.ensure(llm, message("b"))
    assert rows.asked == [(message("a")["model"], "k")] * 2  # before its files are read and after that
    assert knows(llm, "k") and not knows(AdaptedLLM(None), "k")


def test_one_that_is_removed_while_its_files_are_read_is_not_known() -> None:
    rows, registry = Rows(), Registry()

    def find(checkpoint_id: str, adapter_id: str) -> AdapterFile:
        if adapter_id in registry.known:
            raise UnknownModel("The adapter was removed.")
        return rows(checkpoint_id, adapter_id)

    with pytest.raises(UnknownModel, match="was removed"):
        ServedAdapters(find).ensure(AdaptedLLM(registry), message("a", adapter="k"))
    assert registry.known == {}


def test_those_in_memory_are_described() -> None:
    registry = Registry(known={"a": Path("/a"), "b": Path("/b")}, resident={"a": True})
    assert resident_adapters(AdaptedLLM(None)) == ()
    found = ResidentAdapter("a", memory_bytes=100, last_used_at=7.0, is_pinned=True)
    assert resident_adapters(AdaptedLLM(registry)) == (found,)


@pytest.mark.parametrize("is_there", [True, False])
def test_callers_do_not_see_paths(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "sql"
    if is_there:
        path.mkdir()
    llm = AdaptedLLM(Registry())

    def check(place: Path, name: str) -> None:
        raise CorruptCheckpoint(f"{place} has no adapter_model.safetensors; it is no adapter.", param=str(place))

    llm.registry.check = check
    with pytest.raises(CheckpointError) as caught:
        adapters = ServedAdapters(lambda checkpoint_id, adapter_id: AdapterFile("sql", path, "a"))
        adapters.ensure(llm, message("a", adapter="k"))
    what = "the adapter sql has no adapter_model" if is_there else "The files of the adapter sql are gone; restore them"
    assert caught.value.message.startswith(what)
    assert (caught.value.param, caught.value.http_status) == ("model", 422)
    assert str(tmp_path) not in str(caught.value.to_dict())


def test_other_files_than_the_registered_ones_are_refused() -> None:
    llm = AdaptedLLM(Registry())
    adapters = ServedAdapters(lambda checkpoint_id, adapter_id: AdapterFile("sql", Path("/k"), "another"))
    with pytest.raises(ChecksumMismatch, match="files of the adapter sql have changed"):
        adapters.ensure(llm, message("a", adapter="k"))
    with pytest.raises(UnknownModel):
        ServedAdapters(no_adapters).ensure(llm, message("a", adapter="k"))
    assert not knows(llm, "k")


@pytest.mark.parametrize("registry", [None, Registry(budget_bytes=99)])
def test_a_model_without_room_must_be_loaded_again(registry: Registry | None) -> None:
    with pytest.raises(NeedsReload):
        ServedAdapters(Rows()).ensure(AdaptedLLM(registry), message("a", adapter="k"))


class Plans(FakePlans):
    """The first load has no room for adapters, the next ones have."""

    adapter_bytes = 100

    def __call__(self, checkpoint_id: str) -> Any:
        return replace(super().__call__(checkpoint_id), adapter_bytes=self.adapter_bytes)


def manager_of(plans: Plans) -> tuple[ModelManager, Client]:
    plans.make = lambda checkpoint_id: AdaptedLLM(Registry(100) if len(plans.loads) > 1 else None)
    manager = ModelManager(
        plan=plans, presence=FakePresence(), budget_bytes=100, on_dead=lambda error: None, find_adapter=Rows()
    )
    return manager, Client()


def test_a_request_waits_for_the_reload() -> None:
    plans = Plans()
    manager, client = manager_of(plans)
    try:
        manager.submit(message("plain"), client.on_events)
        client.wait("plain")
        for number in range(3):
            manager.submit(message(f"r{number}", adapter="k"), client.on_events)
        client.wait("r0", "r1", "r2")
        assert [client.events[f"r{number}"][-1]["type"] for number in range(3)] == ["done"] * 3
        assert len(plans.loads) == 2
        (llm,) = plans.llms.values()
        manager.forget_adapter("k")
        assert not knows(llm, "k")
        assert manager.num_active == 0
    finally:
        manager.drain(1)


def test_a_model_that_may_have_none_refuses() -> None:
    plans = Plans()
    plans.adapter_bytes = 0
    manager, client = manager_of(plans)
    try:
        manager.submit(message("r", adapter="k"), client.on_events)
        client.wait("r")
        assert "max_adapters of the model to at least 1" in client.error("r").message
        assert len(plans.loads) == 1
    finally:
        manager.drain(1)
