"""Rows over stored files: tenants, expiry, bytes that go with the last row."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.errors import BlazrError, IdempotencyKeyReused, InvalidRequest, NotFound, RequestTooLarge, StorageFull
from inference.files import services, store
from inference.files.services import (
    expiry_seconds,
    file_create,
    file_delete,
    file_expiry_renew,
    file_get,
    file_object,
    files_of,
    files_sweep,
)
from inference.files.store import FileWriter, file_path
from inference.models import Batch, BatchState, StoredFile
from inference.values.principal import LOCAL
from inference.values.request_key import RequestKey
from tests.inference.batches.fakes import line, make_batch, store_file
from tests.inference.jobs.submissions import KEY_A, KEY_B
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


def test_a_file_is_shown_as_openai_shows_one():
    row = store_file([line("a")])
    shown = file_object(row)
    assert (shown["id"], shown["object"], shown["purpose"]) == (row.file_id, "file", "batch")
    assert shown["bytes"] == row.size_bytes > 0
    assert file_get(file_id=row.file_id, principal=LOCAL) == row


def test_the_bytes_go_with_the_last_row():
    first, second = store_file([line("a")]), store_file([line("a")])
    assert first.sha256 == second.sha256
    file_delete(file_id=first.file_id, principal=LOCAL)
    assert file_path(second.sha256).exists()
    file_delete(file_id=second.file_id, principal=LOCAL)
    assert not file_path(second.sha256).exists()
    for file_id in (first.file_id, "file-none", "a\0b"):
        with pytest.raises(NotFound):
            file_get(file_id=file_id, principal=LOCAL)


def test_the_bytes_are_on_the_disk_before_anybody_waits_for_the_lock(monkeypatch):
    lock, sizes = store.store_lock, []

    def locked():
        sizes.extend(path.stat().st_size for path in store.unfinished_files())
        return lock()

    monkeypatch.setattr(store, "store_lock", locked)
    assert sizes == [store_file([line("a")]).size_bytes]


def test_a_tenant_sees_its_own_files():
    row = store_file([line("a")])
    key, _ = api_key_create(name="stranger")
    stranger = principal_of_tenant(f"key:{key.pk}")
    assert stranger is not None
    assert list(files_of(LOCAL)) == [row]
    assert not files_of(stranger).exists()
    with pytest.raises(NotFound):
        file_get(file_id=row.file_id, principal=stranger)


def test_a_file_that_is_kept_expires_like_others(settings):
    row = store_file([line("a")])
    StoredFile.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    settings.BLAZR_FILE_EXPIRE_DAYS = 3
    file_expiry_renew(file_id=row.file_id, principal=LOCAL)
    row.refresh_from_db()
    assert timedelta(days=2) < row.expires_at - timezone.now() <= timedelta(days=3)
    settings.BLAZR_FILE_EXPIRE_DAYS = 0
    file_expiry_renew(file_id=row.file_id, principal=LOCAL)
    assert StoredFile.objects.get().expires_at is None
    with pytest.raises(NotFound):
        file_expiry_renew(file_id="file-none", principal=LOCAL)


def test_expired_files_are_swept():
    row, other = store_file([line("a")]), store_file([line("b")])
    StoredFile.objects.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert files_sweep() == 1
    assert list(StoredFile.objects.all()) == [other]


def test_the_key_of_an_expired_file_that_is_not_swept_yet_is_free():
    def upload(digest: str) -> StoredFile:
        writer = FileWriter()
        writer.write(b"a")
        key = RequestKey("k", digest)
        return file_create(
            writer=writer, filename="a", purpose="batch", tenant=LOCAL.tenant, expires_s=None, request_key=key
        )

    first = upload("one")
    assert upload("one") == first
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    second = upload("one")
    assert second != first
    assert file_get(file_id=second.file_id, principal=LOCAL) == second
    assert files_sweep() == 1
    assert upload("one") == second
    with pytest.raises(IdempotencyKeyReused):
        upload("two")


def test_the_input_of_a_batch_that_is_validated_is_swept_later():
    make_checkpoint()
    batch = make_batch([line("a")])
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert files_sweep() == 0
    assert file_path(batch.input_sha256).exists()
    Batch.objects.update(state=BatchState.IN_PROGRESS)
    assert files_sweep() == 1
    assert not file_path(batch.input_sha256).exists()


@pytest.mark.parametrize(
    ("limit", "error", "other_may"),
    [("MAX_BYTES_PER_TENANT", RequestTooLarge, True), ("MAX_BYTES", StorageFull, False)],
)
def test_a_file_above_a_limit_of_bytes_is_refused_and_leaves_nothing(monkeypatch, limit, error, other_may):
    row = store_file([b"x" * 59], KEY_A)
    monkeypatch.setattr(services, limit, 100)
    with pytest.raises(error, match=r"has 60 bytes and .* have 60; the limit is 100 bytes .* Delete files") as caught:
        store_file([b"y" * 59], KEY_A)
    assert caught.value.param == "file"
    assert [path.name for path in file_path("").rglob("*") if path.is_file()].count(row.sha256) == 1
    assert not list(file_path("tmp").iterdir())
    if other_may:
        store_file([b"z" * 59], KEY_B)
    else:
        with pytest.raises(BlazrError):
            store_file([b"z" * 59], KEY_B)
    file_delete(file_id=row.file_id, principal=KEY_A)
    assert store_file([b"y" * 39], KEY_A).size_bytes == 40


@pytest.mark.parametrize("wrong", [{"anchor": "tomorrow", "seconds": 3600}, {"anchor": "created_at", "seconds": 10}])
def test_an_expiry_that_is_wrong_is_named(wrong):
    assert expiry_seconds({"anchor": "created_at", "seconds": 3600}, param="expires_after") == 3600
    with pytest.raises(InvalidRequest) as caught:
        expiry_seconds(wrong, param="expires_after")
    assert (caught.value.param or "").startswith("expires_after")
