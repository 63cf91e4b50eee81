"""Uploads are judged by their heads, before the weights are sent."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from inference.errors import BlazrError, Conflict
from models_registry import storage, uploads
from models_registry.models import Upload
from models_registry.upload_preview import upload_compare, upload_preview
from models_registry.upload_rules import DeclaredFile
from tests.models_registry.detection.builders import UNKNOWN_TYPE, llama_shapes, small_hybrid, write_checkpoint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]
HEAD = 20_000


def begin(place: Path, name: str = "early", *, grow: int = 0) -> Upload:
    """Declare the files of a checkpoint and send all small ones."""
    files = sorted(place.iterdir(), key=lambda file: file.suffix == ".safetensors")
    declared = [DeclaredFile(file.name, file.stat().st_size) for file in files]
    upload = uploads.upload_create(owner=None, served_model_name=name, files=declared)
    for number, file in enumerate(files):
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            content = content[:HEAD]
        uploads.upload_receive(upload_id=upload.pk, number=number, offset=0, body=io.BytesIO(content))
    return upload


def test_a_known_model_is_described_by_its_heads(tmp_path: Path, staff: User) -> None:
    shapes, config = small_hybrid()
    place = write_checkpoint(tmp_path / "hybrid", shapes, config)
    upload = begin(place)
    assert (place / "model.safetensors").stat().st_size > HEAD
    found = upload_preview(upload_id=upload.pk)
    assert found["is_conclusive"]
    assert [layer["kind"] for layer in found["layers"]] == ["mamba2", "mla+moe", "attention+mlp"]
    assert not any("A_log" in text for text in found["warnings"])
    assert uploads.upload_get(upload.pk).state == "receiving"
    assert not (storage.upload_path(upload.pk) / "preview").exists()


def test_an_unknown_model_is_refused_before_its_weights(tmp_path: Path) -> None:
    upload = begin(write_checkpoint(tmp_path / "cousin", llama_shapes(), UNKNOWN_TYPE))
    with pytest.raises(BlazrError, match="The nearest is llama"):
        upload_preview(upload_id=upload.pk)
    row = uploads.upload_get(upload.pk)
    assert row.state == "refused" and "The nearest is llama" in row.reason
    assert not storage.upload_path(upload.pk).exists()


def test_a_head_that_is_cut_in_a_gguf_file_is_not_judged(tmp_path: Path) -> None:
    upload = uploads.upload_create(owner=None, served_model_name="cut", files=[DeclaredFile("model.gguf", 10_000_000)])
    head = b"GGUF" + (3).to_bytes(4, "little") + (5).to_bytes(8, "little") * 2
    uploads.upload_receive(upload_id=upload.pk, number=0, offset=0, body=io.BytesIO(head))
    assert upload_preview(upload_id=upload.pk) == {"is_conclusive": False}
    assert uploads.upload_get(upload.pk).state == "receiving"


def test_small_files_come_first(tmp_path: Path) -> None:
    files = [DeclaredFile("config.json", 10), DeclaredFile("model.safetensors", 1000)]
    upload = uploads.upload_create(owner=None, served_model_name="early", files=files)
    with pytest.raises(Conflict, match=r"config\.json is incomplete"):
        upload_preview(upload_id=upload.pk)


def test_resuming_compares_what_was_sent(tmp_path: Path) -> None:
    shapes, config = small_hybrid()
    place = write_checkpoint(tmp_path / "hybrid", shapes, config)
    upload = begin(place)
    (file,) = upload.files.filter(name="model.safetensors")
    content = (place / "model.safetensors").read_bytes()

    def compare(piece: bytes, offset: int) -> int:
        body = io.BytesIO(piece)
        return upload_compare(upload_id=upload.pk, number=file.number, offset=offset, body=body).received_bytes

    assert compare(content[HEAD - 1000 : HEAD], HEAD - 1000) == HEAD
    with pytest.raises(Conflict, match="isn't the file whose upload began"):
        compare(b"x" * 1000, HEAD - 1000)
    with pytest.raises(Conflict, match=f"has {HEAD} bytes here"):
        compare(content[:10], HEAD)
    assert uploads.upload_get(upload.pk).files.get(pk=file.pk).received_bytes == HEAD
    storage.part_path(upload.pk, file.number).unlink()  # as a check does that has published it, and was killed then
    with pytest.raises(Conflict, match="was received whole"):
        compare(content[HEAD - 1000 : HEAD], HEAD - 1000)
