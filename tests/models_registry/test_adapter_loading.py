"""Adapters that are loaded ahead: the row says so before the workers hear of it, and doesn't if they can't."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import Conflict, CorruptCheckpoint, NotFound, Unavailable
from inference.values.states import ResidentAdapter
from inference.worker.load_plan import pinned_adapters
from models_registry import live
from models_registry.adapter_loading import adapter_load, adapter_unload
from models_registry.models import Adapter, Checkpoint
from tests.inference.rows import make_adapter, make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


class Workers:
    """Carries out orders, or fails with ``error``; notes whether the row was pinned by then."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.found: ResidentAdapter | None = None
        self.orders: list[tuple[str, bool]] = []

    def load(self, checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
        return self._order("load", checkpoint_id, adapter_id)

    def unload(self, checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
        return self._order("unload", checkpoint_id, adapter_id)

    def _order(self, kind: str, checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
        self.orders.append((kind, adapter_id in pinned_adapters(checkpoint_id)))
        if self.error is not None:
            raise self.error
        return self.found


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    found = Workers()
    monkeypatch.setattr(live, "load_adapter", found.load)
    monkeypatch.setattr(live, "unload_adapter", found.unload)
    return found


@pytest.fixture
def base() -> Checkpoint:
    return make_checkpoint("base")


def test_a_loaded_adapter_comes_with_its_base_until_it_is_unloaded(base: Checkpoint, workers: Workers) -> None:
    row = make_adapter(base, "sql")
    workers.found = ResidentAdapter(str(row.pk), 5, is_pinned=True)
    loaded, found = adapter_load(checkpoint=base, adapter_id=row.pk)
    assert found is workers.found and loaded.is_pinned and pinned_adapters(str(base.pk)) == [str(row.pk)]
    workers.found = None
    unloaded, left = adapter_unload(checkpoint=base, adapter_id=row.pk)
    assert left is None and not unloaded.is_pinned and pinned_adapters(str(base.pk)) == []
    assert workers.orders == [("load", True), ("unload", False)]
    assert loaded.loaded_at is not None and Adapter.objects.get().loaded_at is None


@pytest.mark.parametrize("was_pinned", [False, True])
@pytest.mark.parametrize("error", [CorruptCheckpoint("cut off"), Unavailable("no worker")])
def test_one_that_can_not_be_loaded_is_as_it_was(
    base: Checkpoint, workers: Workers, error: Exception, was_pinned: bool
) -> None:
    row = make_adapter(base, "sql")
    if was_pinned:
        adapter_load(checkpoint=base, adapter_id=row.pk)
    workers.error = error
    with pytest.raises(type(error)):
        adapter_load(checkpoint=base, adapter_id=row.pk)
    assert Adapter.objects.get().is_pinned == was_pinned


def test_a_load_that_fails_leaves_what_another_one_reaches(
    base: Checkpoint, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another load of it succeeds and this one fails; the other one fails and this one succeeds."""
    row = make_adapter(base, "sql")

    def overtaken(checkpoint_id: str, adapter_id: str) -> None:
        monkeypatch.setattr(live, "load_adapter", workers.load)
        adapter_load(checkpoint=base, adapter_id=row.pk)
        raise Unavailable("no worker")

    monkeypatch.setattr(live, "load_adapter", overtaken)
    with pytest.raises(Unavailable):
        adapter_load(checkpoint=base, adapter_id=row.pk)
    assert Adapter.objects.get().is_pinned

    def beside_a_failure(checkpoint_id: str, adapter_id: str) -> None:
        workers.error = Unavailable("no worker")
        monkeypatch.setattr(live, "load_adapter", workers.load)
        with pytest.raises(Unavailable):
            adapter_load(checkpoint=base, adapter_id=row.pk)

    adapter_unload(checkpoint=base, adapter_id=row.pk)
    monkeypatch.setattr(live, "load_adapter", beside_a_failure)
    adapter_load(checkpoint=base, adapter_id=row.pk)
    assert Adapter.objects.get().is_pinned


def test_what_is_removed_while_it_is_loaded_is_forgotten_once_more(
    base: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(live, "forget_adapter", forgotten.append)
    first, second = make_adapter(base, "first"), make_adapter(base, "second")

    def removed(checkpoint_id: str, adapter_id: str) -> None:
        Adapter.objects.filter(pk=adapter_id).delete()
        if adapter_id == str(second.pk):
            raise Unavailable("no reply in time")

    monkeypatch.setattr(live, "load_adapter", removed)
    with pytest.raises(Conflict, match="'base:first' was removed while it was loaded; register it again"):
        adapter_load(checkpoint=base, adapter_id=first.pk)
    with pytest.raises(Unavailable, match="no reply in time"):
        adapter_load(checkpoint=base, adapter_id=second.pk)
    assert forgotten == [str(first.pk), str(second.pk)]


def test_an_unload_that_may_have_failed_is_no_success(base: Checkpoint, workers: Workers) -> None:
    row = make_adapter(base, "sql")
    Adapter.objects.update(is_pinned=True)
    workers.error = Unavailable("Redis can't be reached")
    with pytest.raises(Unavailable, match="Redis can't be reached"):
        adapter_unload(checkpoint=base, adapter_id=row.pk)
    assert not Adapter.objects.get().is_pinned  # its base comes without it even so


def test_missing_files_and_others_adapters_are_refused(base: Checkpoint, workers: Workers) -> None:
    row = make_adapter(base, "sql")
    other: Any = make_checkpoint("other")
    for order in (adapter_load, adapter_unload):
        with pytest.raises(NotFound):
            order(checkpoint=other, adapter_id=row.pk)
    Adapter.objects.update(state=Adapter.State.MISSING)
    with pytest.raises(Conflict, match="files of the adapter 'base:sql' are missing; restore them, or remove it"):
        adapter_load(checkpoint=base, adapter_id=row.pk)
    Adapter.objects.update(state=Adapter.State.AVAILABLE)
    Checkpoint.objects.filter(pk=base.pk).update(state=Checkpoint.State.MISSING)
    base.refresh_from_db()
    with pytest.raises(Conflict):
        adapter_load(checkpoint=base, adapter_id=row.pk)
    assert workers.orders == []
