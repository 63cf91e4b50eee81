"""Registering, overriding, renaming and deleting keep rows and files together."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from inference.errors import (
    BlazrError,
    ChecksumMismatch,
    Conflict,
    CorruptCheckpoint,
    InvalidRequest,
    NotFound,
    UnknownModel,
)
from models_registry import selectors, services
from models_registry.models import Checkpoint, CheckpointOverride
from models_registry.runs.services import run_create
from tests.models_registry.detection.builders import write_tensors

pytestmark = pytest.mark.django_db


def test_registering_stores_what_inspection_found(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    assert (row.served_model_name, row.source, row.state) == ("tiny-hybrid", "path", "available")
    assert row.architecture == "1 × mamba2, 1 × mla+moe, 1 × attention+mlp"
    assert (row.format, row.num_layers, row.vocab_size, row.max_position_embeddings) == ("oxidizr", 3, 64, 128)
    stored = selectors.checkpoint_get_by_name("tiny-hybrid")
    inspection = selectors.checkpoint_inspection(stored)
    assert inspection.spec.num_parameters() == row.num_parameters
    assert inspection.weight_files == ("model.safetensors",)
    assert row.size_bytes == (hybrid / "model.safetensors").stat().st_size


def test_a_bare_file_is_named_by_its_stem(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid / "model.safetensors", served_model_name=None)
    assert row.served_model_name == "model"


def test_the_same_path_is_looked_at_again(hybrid: Path) -> None:
    first = services.checkpoint_register(path=hybrid, served_model_name="a")
    config = json.loads((hybrid / "config.json").read_text())
    (hybrid / "config.json").write_text(json.dumps(config | {"max_seq_len": 64}))
    again = services.checkpoint_register(path=f"{hybrid}/")
    assert again.pk == first.pk
    assert (again.served_model_name, again.max_position_embeddings) == ("a", 64)
    renamed = services.checkpoint_register(path=hybrid, served_model_name="b")
    assert (renamed.pk, renamed.served_model_name) == (first.pk, "b")
    assert Checkpoint.objects.count() == 1


def test_a_taken_name_is_numbered_or_refused(hybrid: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "tiny-hybrid"
    other.parent.mkdir()
    other.symlink_to(hybrid)
    services.checkpoint_register(path=hybrid)
    assert services.checkpoint_register(path=other).served_model_name == "tiny-hybrid-2"
    third = tmp_path / "third"
    third.symlink_to(hybrid)
    with pytest.raises(Conflict, match="taken"):
        services.checkpoint_register(path=third, served_model_name="tiny-hybrid")
    with pytest.raises(Conflict, match="taken"):
        services.checkpoint_register(path=other, served_model_name="tiny-hybrid")
    assert Checkpoint.objects.count() == 2


@pytest.mark.parametrize("spoil", ["truncate", "remove", "pickle"])
def test_what_cannot_be_served_leaves_no_row(hybrid: Path, spoil: str) -> None:
    weights = hybrid / "model.safetensors"
    if spoil == "truncate":
        os.truncate(weights, weights.stat().st_size - 1)
    elif spoil == "remove":
        weights.unlink()
    else:
        weights.rename(hybrid / "pytorch_model.bin")
    with pytest.raises(BlazrError) as caught:
        services.checkpoint_register(path=hybrid)
    assert caught.value.http_status == 422
    assert not Checkpoint.objects.exists()


def test_text_that_databases_refuse_is_refused_with_a_sentence(hybrid: Path) -> None:
    (hybrid / "chat_template.jinja").write_text("{{ messages }}\0")
    (hybrid / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    with pytest.raises(CorruptCheckpoint, match=r"U\+0000"):
        services.checkpoint_register(path=hybrid)


def test_unknown_names_and_ids_are_not_found() -> None:
    for name in ("nobody", "", "\0", "x" * 10_000):
        with pytest.raises(UnknownModel):
            selectors.checkpoint_get_by_name(name)
    for key in ("nobody", "\0", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(UnknownModel):
            selectors.checkpoint_get(key)


def test_lists_leave_the_megabytes_out(hybrid: Path, django_assert_num_queries) -> None:
    services.checkpoint_register(path=hybrid)
    with django_assert_num_queries(1):
        (row,) = selectors.checkpoint_list()
        assert row.architecture
    assert "inspection" in row.get_deferred_fields()


def test_an_override_is_inspected_with_and_kept_with_its_author(hybrid: Path, staff: User) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_override_set(checkpoint=row, fact="max_seq_len", value=96, author=staff)
    row.refresh_from_db()
    assert row.max_position_embeddings == 96
    services.checkpoint_override_set(checkpoint=row, fact="max_position_embeddings", value=80, author=staff)
    first, second = CheckpointOverride.objects.order_by("pk")
    assert (first.fact, first.value, first.author_name, first.cleared_at is None) == (
        "max_position_embeddings", 96, "vera", False,
    )  # fmt: skip
    assert (second.value, second.cleared_at) == (80, None)
    fact = next(item for item in row.inspection["facts"] if item["name"] == "max_position_embeddings")
    assert (fact["value"], fact["confidence"]) == (80, "override")
    services.checkpoint_override_clear(checkpoint=row, fact="max_position_embeddings")
    row.refresh_from_db()
    assert row.max_position_embeddings == 128
    assert selectors.overrides_in_force(row) == {}
    with pytest.raises(NotFound):
        services.checkpoint_override_clear(checkpoint=row, fact="max_position_embeddings")


def test_overrides_survive_registering_again(hybrid: Path) -> None:
    services.checkpoint_register(path=hybrid, overrides={"max_seq_len": 32})
    assert services.checkpoint_register(path=hybrid).max_position_embeddings == 32


@pytest.mark.parametrize(
    ("fact", "value"), [("colour", 1), ("top_k", "many"), ("top_k", 10_000), ("attention.head_dim", 7)]
)
def test_a_wrong_override_changes_nothing(hybrid: Path, fact: str, value: object) -> None:
    row = services.checkpoint_register(path=hybrid)
    before = Checkpoint.objects.get().inspection
    with pytest.raises(BlazrError) as caught:
        services.checkpoint_override_set(checkpoint=row, fact=fact, value=value)
    assert caught.value.http_status in (400, 422)
    assert not CheckpointOverride.objects.exists()
    assert Checkpoint.objects.get().inspection == before


def test_settings_merge_and_null_resets(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_settings_update(checkpoint=row, values={"dtype": "float32", "max_num_seqs": 4})
    services.checkpoint_settings_update(checkpoint=row, values={"max_num_seqs": None, "max_model_len": 100})
    assert Checkpoint.objects.get().settings == {"dtype": "float32", "max_model_len": 100}
    with pytest.raises(InvalidRequest, match="128 positions"):
        services.checkpoint_settings_update(checkpoint=row, values={"max_model_len": 129})
    assert Checkpoint.objects.get().settings == {"dtype": "float32", "max_model_len": 100}


def test_changed_files_are_noticed_before_a_load(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_files_verify(row)
    weights = hybrid / "model.safetensors"
    copy = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(copy)
    with pytest.raises(ChecksumMismatch, match="has changed"):
        services.checkpoint_files_verify(row)
    services.checkpoint_refresh(checkpoint=row)
    services.checkpoint_files_verify(row)
    weights.unlink()
    with pytest.raises(ChecksumMismatch, match="is gone"):
        services.checkpoint_files_verify(row)


def test_an_edit_with_restored_times_is_noticed_before_a_load(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    weights = hybrid / "model.safetensors"
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(weights, ns=times)
    with pytest.raises(ChecksumMismatch, match="has changed"):
        services.checkpoint_files_verify(row)


def test_a_digest_decides_where_only_links_or_modes_changed(hybrid: Path) -> None:
    """Uploads have digests and share their files by links."""
    weights = hybrid / "model.safetensors"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in hybrid.iterdir()}
    row = services.checkpoint_register(path=hybrid, sha256=digests)
    os.link(weights, hybrid / "another")
    services.checkpoint_files_verify(row)
    services.checkpoint_refresh(checkpoint=row)
    assert {stamp["name"]: stamp["sha256"] for stamp in row.file_stamps} == digests, "digests are kept"
    row.file_stamps = [{**stamp, "sha256": ""} for stamp in row.file_stamps]
    weights.chmod(0o400)
    with pytest.raises(ChecksumMismatch, match=r'metadata of model.safetensors .*permissions.* links.*"Inspect again"'):
        services.checkpoint_files_verify(row)
    row.file_stamps = [{key: stamp[key] for key in stamp if key != "ctime_ns"} for stamp in row.file_stamps]
    services.checkpoint_files_verify(row)  # a row of an earlier version


def test_a_matching_digest_renews_the_stamp(hybrid: Path, monkeypatch) -> None:
    weights = hybrid / "model.safetensors"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in hybrid.iterdir()}
    row = services.checkpoint_register(path=hybrid, sha256=digests)
    os.link(weights, hybrid / "another")
    hashed, real = [], services.storage.sha256_file
    monkeypatch.setattr(services.storage, "sha256_file", lambda file, tick: hashed.append(file) or real(file, tick))
    for _ in range(3):
        services.checkpoint_files_verify(row)
    services.checkpoint_files_verify(Checkpoint.objects.get())
    assert hashed == [weights]


def test_refresh_keeps_the_last_good_inspection(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    write_tensors(hybrid / "model.safetensors", {"strange.weight": (2, 2)})
    with pytest.raises(BlazrError):
        services.checkpoint_refresh(checkpoint=row)
    row.refresh_from_db()
    assert (row.state, row.num_layers) == ("refused", 3)
    assert row.state_reason


def test_missing_and_returning_files_are_noted(hybrid: Path) -> None:
    services.checkpoint_register(path=hybrid)
    hybrid.rename(hybrid.with_name("away"))
    assert services.checkpoint_states_refresh() == 1
    assert Checkpoint.objects.get().state == "missing"
    hybrid.with_name("away").rename(hybrid)
    assert services.checkpoint_states_refresh() == 1
    assert Checkpoint.objects.get().state == "available"
    assert services.checkpoint_states_refresh() == 0


def test_a_path_that_cannot_be_looked_at_keeps_no_other_row_from_being_looked_at(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    Checkpoint.objects.create(served_model_name="a", path=str(hybrid.parent / ("x" * 300)), num_layers=1)
    hybrid.rename(hybrid.with_name("away"))
    assert services.checkpoint_states_refresh() == 2
    assert set(Checkpoint.objects.values_list("state", flat=True)) == {"missing"}
    with pytest.raises(BlazrError):
        services.checkpoint_refresh(checkpoint=Checkpoint.objects.get(served_model_name="a"))
    row.refresh_from_db()
    assert "can't be looked at" in row.state_reason


def inspecting(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Let something happen while files are inspected."""
    inspect = services.inspect_in_child

    def inspect_slowly(*arguments, **options):
        monkeypatch.setattr(services, "inspect_in_child", inspect)
        meanwhile()
        return inspect(*arguments, **options)

    monkeypatch.setattr(services, "inspect_in_child", inspect_slowly)


def test_what_others_change_during_an_inspection_stays(hybrid: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="before")

    def change() -> None:
        other = Checkpoint.objects.get()
        services.checkpoint_settings_update(checkpoint=other, values={"max_num_seqs": 4})
        services.checkpoint_rename(checkpoint=other, served_model_name="after")

    inspecting(monkeypatch, change)
    services.checkpoint_refresh(checkpoint=row)
    assert Checkpoint.objects.values_list("served_model_name", "settings").get() == ("after", {"max_num_seqs": 4})
    inspect = lambda path, **options: (  # noqa: E731
        services.checkpoint_settings_update(checkpoint=Checkpoint.objects.get(), values={"dtype": "float32"}),
        services.inspect_checkpoint(path, **options),
    )[1]
    services.checkpoint_register(path=hybrid, inspect=inspect)
    assert Checkpoint.objects.get().settings == {"max_num_seqs": 4, "dtype": "float32"}


def test_a_model_that_is_deleted_during_an_inspection_stays_deleted(hybrid: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=hybrid)
    inspecting(monkeypatch, Checkpoint.objects.all().delete)
    with pytest.raises(NotFound, match="was deleted meanwhile"):
        services.checkpoint_refresh(checkpoint=row)
    with pytest.raises(NotFound, match="was deleted meanwhile"):
        services.checkpoint_override_set(checkpoint=row, fact="max_seq_len", value=96)
    assert not Checkpoint.objects.exists()


def test_files_that_are_copied_during_an_inspection_stay_copied(hybrid: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=hybrid)
    copied = {"path": "/copy", "directory": "/copy"}  # as ``promoted_copies`` does
    inspecting(monkeypatch, lambda: Checkpoint.objects.update(**copied))
    with pytest.raises(Conflict, match="were copied meanwhile"):
        services.checkpoint_refresh(checkpoint=row)
    assert Checkpoint.objects.values("path", "directory").get() == copied


def test_two_facts_that_are_set_at_once_are_both_in_the_spec_or_one_is_refused(hybrid: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=hybrid)

    def set_another() -> None:
        services.checkpoint_override_set(checkpoint=Checkpoint.objects.get(), fact="max_seq_len", value=96)

    inspecting(monkeypatch, set_another)
    with pytest.raises(Conflict, match="set or cleared while its files were inspected"):
        services.checkpoint_override_set(checkpoint=row, fact="top_k", value=1)
    stored = Checkpoint.objects.get()
    assert (stored.max_position_embeddings, selectors.overrides_in_force(stored)) == (
        96,
        {"max_position_embeddings": 96},
    )


def test_the_name_of_a_run_is_left_to_the_alias_of_its_checkpoints(hybrid: Path) -> None:
    run_create(directory=hybrid.parent, name="tiny-hybrid", by_operator=True)
    with pytest.raises(Conflict, match="a training run"):
        services.checkpoint_register(path=hybrid, served_model_name="tiny-hybrid")
    row = services.checkpoint_register(path=hybrid)
    assert row.served_model_name == "tiny-hybrid-2"
    with pytest.raises(Conflict, match="a training run"):
        services.checkpoint_rename(checkpoint=row, served_model_name="tiny-hybrid")


def test_deleting_never_touches_registered_paths(hybrid: Path, storage_dirs: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_delete(checkpoint=row)
    assert not Checkpoint.objects.exists()
    assert (hybrid / "model.safetensors").exists()


def test_renaming(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_rename(checkpoint=row, served_model_name="nebula:7b")
    assert selectors.checkpoint_get_by_name("nebula:7b").pk == row.pk
    with pytest.raises(InvalidRequest):
        services.checkpoint_rename(checkpoint=row, served_model_name="a/b")
