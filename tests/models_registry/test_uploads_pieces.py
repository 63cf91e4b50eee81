"""Two pieces at one offset: one is stored, the other one is refused, and the file has the bytes of one only."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from inference.errors import Conflict
from models_registry import storage, uploads
from models_registry.models import Upload, UploadFile
from models_registry.upload_rules import DeclaredFile

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]
FIRST, SECOND = b"a" * 64, b"b" * 64


@pytest.fixture
def upload() -> Upload:
    return uploads.upload_create(
        owner=None,
        served_model_name="sent",
        files=[DeclaredFile("model.safetensors", 128), DeclaredFile("config.json", 64)],
    )


class Body(io.BytesIO):
    """A body that calls a function while it is read: another request comes in the meantime."""

    def __init__(self, content: bytes, meanwhile: Callable[[], object]) -> None:
        super().__init__(content)
        self._meanwhile = meanwhile

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        if not content:
            self._meanwhile()
        return content


def put(upload: Upload, content: bytes, offset: int = 0, meanwhile: Callable[[], object] = lambda: None) -> UploadFile:
    return uploads.upload_receive(upload_id=upload.pk, number=1, offset=offset, body=Body(content, meanwhile))


def stored(upload: Upload) -> bytes:
    return storage.part_path(upload.pk, 1).read_bytes()


def test_a_piece_that_was_overtaken_changes_no_byte(upload: Upload) -> None:
    with pytest.raises(Conflict, match="go on at 64"):
        put(upload, SECOND, meanwhile=lambda: put(upload, FIRST))
    assert stored(upload) == FIRST


def test_a_piece_beside_another_one_is_refused(upload: Upload) -> None:
    with storage.part_lock(upload.pk, 1) as descriptor:
        assert descriptor is not None
        with pytest.raises(Conflict, match=r"another piece of config\.json is being stored; ask for the offset"):
            put(upload, SECOND)
    assert (stored(upload), UploadFile.objects.get(number=1).received_bytes) == (b"", 0)
    assert put(upload, FIRST).received_bytes == 64


def test_a_crash_after_the_write_leaves_bytes_that_the_next_piece_overwrites(upload: Upload, monkeypatch) -> None:
    class Crash(BaseException):
        """Stands for kill -9."""

    def crash() -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(uploads.transaction, "atomic", crash)
        put(upload, SECOND)
    assert (stored(upload), UploadFile.objects.get(number=1).received_bytes) == (SECOND, 0)
    with pytest.raises(Conflict, match="send the rest first"):
        uploads.upload_finish(upload_id=upload.pk, wait=True)
    put(upload, FIRST)
    assert stored(upload) == FIRST


def test_a_piece_of_an_upload_that_has_ended_leaves_no_file(upload: Upload) -> None:
    with pytest.raises(Conflict, match="cancelled"):
        put(upload, FIRST, meanwhile=lambda: uploads.upload_cancel(upload_id=upload.pk))
    assert not storage.part_path(upload.pk, 1).parent.exists()
