"""LoRA adapters of checkpoints: registered by path after a check, named by requests, removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inference.errors import (
    BlazrError,
    Conflict,
    InvalidRequest,
    PermissionRefused,
    TensorShapeMismatch,
    UnknownModel,
)
from inference.serving.served_models import served_model_read
from inference.worker.load_plan import find_adapter, plan_load
from models_registry import services
from models_registry.adapters import adapter_list, adapter_register, adapter_states_refresh
from models_registry.aliases import alias_promote
from models_registry.models import Adapter, Checkpoint
from tests.inference.llm.adapter_writing import factors, write_adapter, write_xlora
from tests.inference.llm.harness import Checkpoint as TinyCheckpoint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def base(tmp_path: Path) -> Checkpoint:
    (tmp_path / "tiny").mkdir()
    TinyCheckpoint(tmp_path / "tiny")
    return services.checkpoint_register(path=tmp_path / "tiny", served_model_name="tiny")


@pytest.fixture
def places(tmp_path: Path, settings) -> Path:
    """A directory from which the settings let adapters be registered."""
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "adapters")]
    (tmp_path / "adapters").mkdir()
    return tmp_path / "adapters"


def test_an_adapter_is_checked_and_stored(base: Checkpoint, places: Path) -> None:
    row = adapter_register(checkpoint=base, path=write_adapter(places / "sql", 1))
    assert (row.name, row.rank, row.state, row.path) == ("sql", 4, "available", str(places / "sql"))
    assert "q_proj" in row.targets and len(row.digest) == 64
    assert row.size_bytes == 4 * row.num_values == 4 * sum(tensor.numel() for tensor in factors(1).values())
    by_file = places / "sql" / "adapter_model.safetensors"
    other = adapter_register(checkpoint=base, path=by_file, name="again")
    assert other.digest == row.digest
    assert [item.name for item in adapter_list(base)] == ["again", "sql"]


def test_files_that_do_not_fit_leave_nothing(base: Checkpoint, places: Path) -> None:
    wide = {name: tensor.repeat(1, 2) if "lora_A" in name else tensor for name, tensor in factors(0).items()}
    with pytest.raises(TensorShapeMismatch, match=r"shape \[4, 96\]; it must be \[4, 48\]"):
        adapter_register(checkpoint=base, path=write_adapter(places / "wide", tensors=wide))
    with pytest.raises(BlazrError, match=r"has no adapter_model\.safetensors"):
        adapter_register(checkpoint=base, path=places)
    assert not Adapter.objects.exists()


def test_only_paths_of_the_settings_are_read(base: Checkpoint, places: Path, tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "elsewhere", 1)
    (places / "link").symlink_to(outside)
    (write_adapter(places / "inside", 1) / "tokenizer.json").symlink_to(tmp_path / "tiny" / "tokenizer.json")
    (places / "links").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (places / "links" / name).symlink_to(outside / name)
    for name, file in (("mix", "adapters/adapter_1/adapter_model.safetensors"), ("old", "xlora_config.json")):
        inner = write_xlora(places / name, 1, is_old=name == "old") / file
        inner.rename(tmp_path / name)
        inner.symlink_to(tmp_path / name)
    links = (places / "link", places / "links", places / "inside", places / "links" / "adapter_model.safetensors")
    links += (places / "mix", places / "old")
    for path in (outside, tmp_path / "nothing", *links, places / ".." / "elsewhere"):
        with pytest.raises(PermissionRefused, match="is in no directory of the server's settings") as caught:
            adapter_register(checkpoint=base, path=path, name="a")
        assert caught.value.param == "path"
    with pytest.raises(InvalidRequest):
        adapter_register(checkpoint=base, path="a\0b", name="a")


@pytest.mark.parametrize("name", ["", "a:b", "latest", "a/b", "-a", "a" * 32])
def test_names_that_can_not_be(base: Checkpoint, places: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="the adapter's name is"):
        adapter_register(checkpoint=base, path=write_adapter(places / "sql", 1), name=name)


def test_no_two_models_have_one_name(base: Checkpoint, places: Path, hybrid: Path) -> None:
    path = write_adapter(places / "sql", 1)
    adapter_register(checkpoint=base, path=path)
    with pytest.raises(Conflict, match="has an adapter 'sql'"):
        adapter_register(checkpoint=base, path=path)
    with pytest.raises(Conflict, match="an alias, a training run or an adapter"):
        services.checkpoint_register(path=hybrid, served_model_name="tiny:sql")
    with pytest.raises(Conflict, match="is the name of an adapter"):
        alias_promote(name="tiny:sql", checkpoint=base)
    services.checkpoint_register(path=hybrid, served_model_name="tiny:0.5b")
    with pytest.raises(Conflict, match="is the name of a checkpoint"):
        adapter_register(checkpoint=base, path=path, name="0.5b")
    other = Checkpoint.objects.get(served_model_name="tiny:0.5b")
    services.checkpoint_rename(checkpoint=other, served_model_name="large:sql")
    with pytest.raises(Conflict, match="an alias, a training run or an adapter"):
        services.checkpoint_rename(checkpoint=base, served_model_name="large")
    base.refresh_from_db()
    services.checkpoint_rename(checkpoint=base, served_model_name="larger")


def test_a_name_means_base_and_adapter(base: Checkpoint, places: Path) -> None:
    row = adapter_register(checkpoint=base, path=write_adapter(places / "sql", 1))
    alias_promote(name="prod", checkpoint=base)
    for name in ("tiny:sql", "prod:sql", "prod@1:sql"):
        served = served_model_read(name)
        assert (served.checkpoint_id, served.adapter, served.name) == (str(base.pk), str(row.pk), "tiny:sql")
    assert served_model_read("tiny").adapter == ""
    for name in ("tiny:other", "other:sql", "tiny:", ":sql", "tiny:sql:sql", "tiny:s\0"):
        with pytest.raises(UnknownModel):
            served_model_read(name)
    services.checkpoint_rename(checkpoint=base, served_model_name="qwen:0.5b")
    assert served_model_read("qwen:0.5b:sql").name == "qwen:0.5b:sql"


def test_missing_files_are_recorded(base: Checkpoint, places: Path) -> None:
    path = write_adapter(places / "sql", 1)
    adapter_register(checkpoint=base, path=path)
    assert adapter_states_refresh() == 0
    shutil.move(path, places / "away")
    assert adapter_states_refresh() == 1
    assert Adapter.objects.get().state == "missing"
    shutil.move(places / "away", path)
    assert adapter_states_refresh() == 1
    assert Adapter.objects.get().state == "available"
    Adapter.objects.update(path=f"{places}/{'x' * 300}")  # where the system says something else than "no such file"
    assert adapter_states_refresh() == 1


@pytest.mark.django_db(transaction=True)
def test_a_load_has_room_for_the_registered_ones(base: Checkpoint, places: Path) -> None:
    plain = plan_load(str(base.pk), device="cpu")
    assert plain.adapter_bytes == 0
    rows = [adapter_register(checkpoint=base, path=write_adapter(places / f"a{n}", n)) for n in range(3)]
    width = 4  # float32 files on a CPU
    plan = plan_load(str(base.pk), device="cpu")
    assert plan.adapter_bytes == 3 * rows[0].num_values * width
    assert plan.needed_bytes >= plan.adapter_bytes
    services.checkpoint_settings_update(checkpoint=base, values={"max_adapters": 2})
    assert plan_load(str(base.pk), device="cpu").adapter_bytes == 2 * rows[0].num_values * width
    services.checkpoint_settings_update(checkpoint=base, values={"max_adapters": 0})
    assert plan_load(str(base.pk), device="cpu").adapter_bytes == 0


@pytest.mark.django_db(transaction=True)
def test_the_worker_finds_an_adapter_by_its_key(base: Checkpoint, places: Path) -> None:
    row = adapter_register(checkpoint=base, path=write_adapter(places / "sql", 1))
    found = find_adapter(str(base.pk), str(row.pk))
    assert (found.name, found.path, found.digest) == ("sql", places / "sql", row.digest)
    row.delete()
    for key in (str(row.pk), "sql"):
        with pytest.raises(UnknownModel, match="was removed"):
            find_adapter(str(base.pk), key)
