"""A tokenizer of another registered checkpoint: set by name, kept while it is used, refused where it doesn't fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db.models import ProtectedError
from django.test import Client

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import ChecksumMismatch, Conflict, InvalidRequest, PermissionRefused
from models_registry import selectors, services
from models_registry.aliases import alias_promote
from models_registry.models import Checkpoint, CheckpointOverride, Upload
from models_registry.tokenizer_sources import check_vocabulary
from tests.models_registry.detection.builders import copy_bare_demo

pytestmark = pytest.mark.django_db


@pytest.fixture
def lender(tmp_path: Path) -> Checkpoint:
    place = shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "lender")
    return services.checkpoint_register(path=place)


@pytest.fixture
def bare(tmp_path: Path) -> Checkpoint:
    return services.checkpoint_register(path=copy_bare_demo(tmp_path / "bare"))


def borrow(row: Checkpoint, name: str, author: User | None = None) -> Checkpoint:
    services.checkpoint_override_set(checkpoint=row, fact="tokenizer_from", value=name, author=author)
    return Checkpoint.objects.get(pk=row.pk)


def shown(row: Checkpoint) -> object:
    return next(fact["value"] for fact in row.inspection["facts"] if fact["name"] == "tokenizer_from")


def test_it_is_set_by_name_and_taken_away(bare: Checkpoint, lender: Checkpoint, staff: User) -> None:
    row = borrow(bare, "lender", staff)
    assert row.inspection["tokenizer"]["path"] == f"{lender.path}/tokenizer.json"
    assert row.inspection["tokenizer"]["chat_template"] is not None
    assert shown(row) == "lender"
    override = CheckpointOverride.objects.get()
    assert (override.value, override.source, override.author_name) == ("lender", lender, "vera")
    assert selectors.overrides_in_force(row) == {"tokenizer_from": lender.path}
    services.checkpoint_override_clear(checkpoint=row, fact="tokenizer_from")
    assert Checkpoint.objects.get(pk=row.pk).inspection["tokenizer"]["kind"] == "none"
    assert CheckpointOverride.objects.get().source is None


def test_it_survives_a_rename_and_another_inspection(bare: Checkpoint, lender: Checkpoint) -> None:
    row = borrow(bare, "lender")
    services.checkpoint_rename(checkpoint=lender, served_model_name="renamed")
    services.checkpoint_refresh(checkpoint=row)
    assert (shown(row), row.inspection["tokenizer"]["kind"]) == ("renamed", "huggingface")
    assert services.checkpoint_register(path=row.path).inspection["tokenizer"]["kind"] == "huggingface"


def test_the_other_can_not_be_deleted_meanwhile(bare: Checkpoint, lender: Checkpoint) -> None:
    row = borrow(bare, "lender")
    with pytest.raises(Conflict, match=r"has the tokenizer of bare; take their override tokenizer_from away"):
        services.checkpoint_delete(checkpoint=lender)
    with pytest.raises(ProtectedError):
        lender.delete()
    services.checkpoint_override_clear(checkpoint=row, fact="tokenizer_from")
    services.checkpoint_delete(checkpoint=lender)
    assert not Checkpoint.objects.filter(served_model_name="lender").exists()


def test_deleting_the_borrower_sets_the_other_free(bare: Checkpoint, lender: Checkpoint) -> None:
    services.checkpoint_delete(checkpoint=borrow(bare, "lender"))
    services.checkpoint_delete(checkpoint=lender)


def test_aliases_and_paths_name_it_too(bare: Checkpoint, lender: Checkpoint) -> None:
    alias_promote(name="words", checkpoint=lender)
    assert shown(borrow(bare, "words")) == "lender"
    again = services.checkpoint_register(path=bare.path, overrides={"tokenizer_from": lender.path})
    assert shown(again) == "lender"
    assert CheckpointOverride.objects.count() == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "'nobody', which is not registered"),
        ("a\0b", "not registered"),
        ("bare", "names the checkpoint itself"),
        ("tiny-hybrid", "has no tokenizer.json"),
    ],
)
def test_what_can_not_lend_is_refused(bare: Checkpoint, hybrid: Path, name: str, message: str) -> None:
    services.checkpoint_register(path=hybrid)
    with pytest.raises(InvalidRequest, match=message):
        borrow(bare, name)
    assert not CheckpointOverride.objects.exists()


def test_a_small_embedding_is_refused_with_both_numbers(hybrid: Path, lender: Checkpoint) -> None:
    row = services.checkpoint_register(path=hybrid)
    with pytest.raises(InvalidRequest, match=r"has \d+ tokens, but the embedding has 64 rows"):
        borrow(row, "lender")


def test_a_changed_tokenizer_is_noticed_before_a_load(bare: Checkpoint, lender: Checkpoint) -> None:
    row = borrow(bare, "lender")
    services.checkpoint_files_verify(row)
    with Path(lender.path, "tokenizer.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ChecksumMismatch, match=r"lender/tokenizer\.json of bare has changed"):
        services.checkpoint_files_verify(row)
    services.checkpoint_refresh(checkpoint=row)
    services.checkpoint_files_verify(row)


def test_links_to_an_uploaded_tokenizer_do_no_harm(bare: Checkpoint, lender: Checkpoint, tmp_path: Path) -> None:
    """Files of uploads share their bytes by links, which change their inodes; a digest decides."""
    stamps = [dict(stamp, sha256=services.storage.sha256_file(Path(lender.directory) / stamp["name"], lambda _: None))
              for stamp in lender.file_stamps]  # fmt: skip
    Checkpoint.objects.filter(pk=lender.pk).update(file_stamps=stamps)
    row = borrow(bare, "lender")
    (tmp_path / "link").hardlink_to(Path(lender.path) / "tokenizer.json")
    services.checkpoint_files_verify(row)


def test_the_pages_offer_models_with_a_tokenizer(browser: Client, bare: Checkpoint, lender: Checkpoint) -> None:
    of_page = browser.get(f"/models/{bare.pk}/?tab=facts").context["description"]["overridable"]
    of_upload = browser.get("/models/upload/").context["rules"]["facts"]
    for rules in (of_page, of_upload):
        (rule,) = (rule for rule in rules if rule["name"] == "tokenizer_from")
        assert rule["choices"] == ["lender"]


def test_an_upload_can_name_it(browser: Client, storage_dirs: Path, lender: Checkpoint) -> None:
    body = {"label": "a", "files": [{"name": "model.safetensors", "size_bytes": 100}]}
    for name, status in (("nobody", 400), ("lender", 201)):
        sent = body | {"overrides": {"tokenizer_from": name}}
        assert browser.post("/registry/uploads", sent, content_type="application/json").status_code == status
    assert Upload.objects.get().overrides == {"tokenizer_from": lender.path}


def test_a_refused_deletion_unloads_nothing(
    browser: Client, bare: Checkpoint, lender: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrow(bare, "lender")
    unloaded: list[Checkpoint] = []
    monkeypatch.setattr("models_registry.live.unload", unloaded.append)
    answer = browser.delete(f"/registry/checkpoints/{lender.pk}")
    assert (answer.status_code, unloaded) == (409, [])
    assert "has the tokenizer of bare" in answer.json()["error"]["message"]
    assert browser.delete(f"/registry/checkpoints/{bare.pk}").status_code == 204
    assert browser.delete(f"/registry/checkpoints/{lender.pk}").status_code == 204
    assert len(unloaded) == 2


def test_a_tokenizers_file_lies_beside_the_checkpoint_or_in_an_allowed_directory(tmp_path, settings) -> None:
    place, allowed = tmp_path / "model", tmp_path / "allowed"
    place.mkdir(), allowed.mkdir()
    settings.BLAZR_WATCHED_DIRECTORIES = [str(allowed)]
    inside = str(allowed / "tokenizer.json")
    for vocabulary in ("cl100k_base", "tokenizer.json", "./tokenizer.json", inside, str(place / "tokenizer.json")):
        check_vocabulary(place, {"vocabulary": vocabulary})
    (place / "link.json").symlink_to("/etc/passwd")
    for vocabulary in ("/etc/passwd", "../passwd", "a/../../b", "./link.json", str(tmp_path / "x.json")):
        with pytest.raises(PermissionRefused, match="is in no directory"):
            check_vocabulary(place, {"vocabulary": vocabulary})
    for vocabulary in ("~root/x", "a/\0", "/" * 5000):
        with pytest.raises(InvalidRequest, match="no path of a file"):
            check_vocabulary(place, {"vocabulary": vocabulary})
    check_vocabulary(None, {"vocabulary": inside})
    with pytest.raises(PermissionRefused):
        check_vocabulary(None, {"vocabulary": "a/tokenizer.json"})


def test_no_request_names_a_file_elsewhere(bare: Checkpoint, client: Client) -> None:
    client.force_login(User.objects.create_superuser("vera"))
    for vocabulary in ("/etc/tokenizer.json", str(Path(bare.path).parent / "tokenizer.json")):
        answer = client.post(
            f"/registry/checkpoints/{bare.pk}/overrides",
            {"fact": "vocabulary", "value": vocabulary},
            "application/json",
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "vocabulary")
