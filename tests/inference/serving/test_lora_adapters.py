"""vLLM's names of adapters: with a base, or alone with an alias behind them; nothing is left of a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import Conflict, InvalidRequest, PermissionRefused, Unavailable, UnknownModel
from inference.serving import lora_adapters
from inference.serving.lora_adapters import lora_adapter_load, lora_adapter_unload
from inference.serving.served_models import served_model_read
from inference.values.principal import LOCAL
from models_registry import live
from models_registry.adapters import adapter_register
from models_registry.aliases import alias_promote
from models_registry.models import Adapter, Checkpoint, ModelAlias
from models_registry.services import checkpoint_register
from tests.inference.llm.adapter_writing import write_adapter
from tests.inference.llm.harness import Checkpoint as TinyCheckpoint
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The adapters that workers were to load and to forget."""
    found: list[str] = []
    monkeypatch.setattr(live, "load_adapter", lambda checkpoint_id, adapter_id: found.append(adapter_id))
    monkeypatch.setattr(live, "forget_adapter", found.append)
    return found


@pytest.fixture
def base(tmp_path: Path, settings, data_dir, orders: list[str]) -> Checkpoint:
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "adapters")]
    (tmp_path / "tiny").mkdir()
    TinyCheckpoint(tmp_path / "tiny")
    return checkpoint_register(path=tmp_path / "tiny", served_model_name="tiny")


@pytest.fixture
def path(tmp_path: Path, base: Checkpoint) -> str:
    return str(write_adapter(tmp_path / "adapters" / "sql", 1))


def test_a_name_with_its_base(
    base: Checkpoint, path: str, orders: list[str], django_capture_on_commit_callbacks
) -> None:
    for _ in range(2):  # the second time it is only loaded
        lora_adapter_load(name="tiny:sql", path=path, principal=LOCAL)
    row = Adapter.objects.get()
    assert (row.name, row.path, row.is_pinned, orders) == ("sql", path, True, [str(row.pk)] * 2)
    assert served_model_read("tiny:sql").adapter == str(row.pk) and not ModelAlias.objects.exists()
    with pytest.raises(Conflict, match="'tiny:sql' has already been loaded from another path"):
        lora_adapter_load(name="tiny:sql", path=f"{path}2", principal=LOCAL)
    with django_capture_on_commit_callbacks(execute=True):
        lora_adapter_unload(name="tiny:sql", principal=LOCAL)
        assert not Adapter.objects.exists() and len(orders) == 2  # workers forget it once the removal is stored
    assert orders[2:] == [str(row.pk)]
    with pytest.raises(UnknownModel, match="'tiny:sql' cannot be found"):
        lora_adapter_unload(name="tiny:sql", principal=LOCAL)


def test_a_name_alone_is_an_alias_of_the_only_model(base: Checkpoint, path: str) -> None:
    for _ in range(2):
        lora_adapter_load(name="sql", path=path, principal=LOCAL)
    assert served_model_read("sql").name == "tiny:sql"
    alias_promote(name="prod", checkpoint=base, adapter=Adapter.objects.get())
    with pytest.raises(Conflict, match="'prod' means this adapter, too"):
        lora_adapter_unload(name="sql", principal=LOCAL)
    with pytest.raises(UnknownModel):
        lora_adapter_unload(name="prod", principal=LOCAL)  # no adapter has this name
    ModelAlias.objects.filter(name="prod").delete()
    lora_adapter_unload(name="sql", principal=LOCAL)
    assert not ModelAlias.objects.exists() and not Adapter.objects.exists()
    for name in ("sql", "a\0b", "x:y\0"):
        with pytest.raises(UnknownModel):
            lora_adapter_unload(name=name, principal=LOCAL)


def test_of_several_models_the_base_is_named(base: Checkpoint, path: str) -> None:
    make_checkpoint("other")
    with pytest.raises(InvalidRequest, match=r"names no base, .* \(it has other, tiny\); give BASE:NAME"):
        lora_adapter_load(name="sql", path=path, principal=LOCAL)
    part = replace(LOCAL, models=frozenset({"tiny"}))
    lora_adapter_load(name="sql", path=path, principal=part)
    for refused in ("other:sql", "tiny:sql"):
        with pytest.raises(PermissionRefused, match="may not use the model"):
            lora_adapter_load(name=refused, path=path, principal=replace(LOCAL, models=frozenset({"third"})))
    with pytest.raises(PermissionRefused):
        lora_adapter_unload(name="sql", principal=replace(LOCAL, models=frozenset({"other"})))
    assert Adapter.objects.count() == 1


def test_nothing_is_left_of_a_failure(base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alias_promote(name="sql", checkpoint=base)
    with pytest.raises(Conflict, match="alias 'sql' means something else"):
        lora_adapter_load(name="sql", path=path, principal=LOCAL)
    with pytest.raises(Conflict, match="is the name of a checkpoint"):
        lora_adapter_load(name="tiny", path=path, principal=LOCAL)
    with pytest.raises(PermissionRefused, match="in no directory of the server's settings"):
        lora_adapter_load(name="etc", path="/etc", principal=LOCAL)

    def refuse(checkpoint_id: str, adapter_id: str) -> None:
        raise Unavailable("No worker is running.")

    lora_adapter_load(name="tiny:old", path=path, principal=LOCAL)
    monkeypatch.setattr(live, "load_adapter", refuse)
    for name in ("new", "tiny:new", "old"):
        with pytest.raises(Unavailable):
            lora_adapter_load(name=name, path=path, principal=LOCAL)
    assert Adapter.objects.get().name == "old" and Adapter.objects.get().is_pinned
    assert list(ModelAlias.objects.values_list("name", flat=True)) == ["sql"]


@pytest.mark.parametrize("name", ["sql", "tiny:sql"])
def test_a_failure_leaves_what_another_call_has_loaded(
    base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def overtaken(checkpoint_id: str, adapter_id: str) -> None:
        monkeypatch.setattr(live, "load_adapter", lambda *ids: None)
        lora_adapter_load(name=name, path=path, principal=LOCAL)
        raise Unavailable("No worker is running.")

    monkeypatch.setattr(live, "load_adapter", overtaken)
    with pytest.raises(Unavailable):
        lora_adapter_load(name=name, path=path, principal=LOCAL)
    assert Adapter.objects.get().is_pinned and served_model_read(name).name == "tiny:sql"


@pytest.mark.parametrize("name", ["sql", "tiny:sql"])
@pytest.mark.parametrize("error", [None, UnknownModel("The adapter was removed.")])
def test_what_another_call_removes_meanwhile_is_registered_again(
    base: Checkpoint, path: str, orders: list[str], monkeypatch: pytest.MonkeyPatch, name: str, error: UnknownModel
) -> None:
    """The other call had registered it, and its own load failed."""
    first = adapter_register(checkpoint=base, path=path, name="sql")
    if name == "sql":
        alias_promote(name=name, checkpoint=base, adapter=first)

    def removed(checkpoint_id: str, adapter_id: str) -> None:
        orders.append(adapter_id)
        if adapter_id == str(first.pk):
            ModelAlias.objects.all().delete()
            first.delete()
            if error is not None:
                raise error  # as the worker finds it

    monkeypatch.setattr(live, "load_adapter", removed)
    key = first.pk
    lora_adapter_load(name=name, path=path, principal=LOCAL)
    row = Adapter.objects.get()
    assert row.is_pinned and served_model_read(name).name == "tiny:sql"
    assert orders == [str(key), str(key), str(row.pk)]  # loaded, forgotten, loaded anew
    monkeypatch.setattr(live, "load_adapter", lambda *ids: Adapter.objects.all().delete())
    with pytest.raises(Conflict, match="'tiny:sql' was removed while it was loaded"):
        lora_adapter_load(name="tiny:sql", path=path, principal=LOCAL)


def test_a_load_that_fails_by_itself_is_not_tried_again(
    base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter_register(checkpoint=base, path=path, name="sql")

    def removed(checkpoint_id: str, adapter_id: str) -> None:
        Adapter.objects.all().delete()
        raise Unavailable("no place in memory")

    monkeypatch.setattr(live, "load_adapter", removed)
    with pytest.raises(Unavailable, match="no place in memory"):
        lora_adapter_load(name="tiny:sql", path=path, principal=LOCAL)
    assert not Adapter.objects.exists()


def test_a_failure_leaves_what_another_call_has_made_an_alias_of(
    base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named_meanwhile(checkpoint_id: str, adapter_id: str) -> None:
        alias_promote(name="sql", checkpoint=base, adapter=Adapter.objects.get())
        raise Unavailable("No worker is running.")

    monkeypatch.setattr(live, "load_adapter", named_meanwhile)
    with pytest.raises(Unavailable, match="No worker is running"):
        lora_adapter_load(name="tiny:sql", path=path, principal=LOCAL)
    assert ModelAlias.objects.get().current.adapter == Adapter.objects.get()


def test_an_alias_with_a_history_stays(base: Checkpoint, path: str, orders: list[str]) -> None:
    alias_promote(name="sql", checkpoint=base)
    row = adapter_register(checkpoint=base, path=path, name="sql")
    alias_promote(name="sql", checkpoint=base, adapter=row)
    with pytest.raises(Conflict, match=r"'sql' has had other meanings.*then unload 'tiny:sql'"):
        lora_adapter_unload(name="sql", principal=LOCAL)
    assert ModelAlias.objects.get().revisions.count() == 2 and Adapter.objects.exists() and not orders


def test_an_alias_stays_with_an_adapter_that_can_not_be_removed(
    base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**values: object) -> None:
        raise Conflict("meanwhile")

    lora_adapter_load(name="sql", path=path, principal=LOCAL)
    monkeypatch.setattr(lora_adapters, "adapter_remove", refuse)
    with pytest.raises(Conflict, match="meanwhile"):
        lora_adapter_unload(name="sql", principal=LOCAL)
    assert ModelAlias.objects.get().name == "sql"


def test_names_and_paths_that_can_be_none_are_refused(
    base: Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora_adapter_load(name="tiny:sql", path=path, principal=LOCAL)
    for place in ("~nobody-here/x", "a\0b"):
        with pytest.raises(InvalidRequest, match="path"):
            lora_adapter_load(name="tiny:sql", path=place, principal=LOCAL)
    monkeypatch.setattr(Adapter, "objects", None)  # PostgreSQL has no NUL in texts
    with pytest.raises(InvalidRequest, match="the adapter's name is"):
        lora_adapter_load(name="a\0b", path=path, principal=LOCAL)
