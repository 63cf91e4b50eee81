"""Uploads of GGUF files: one file is a whole checkpoint."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from transformers import LlamaConfig

from inference.errors import CorruptCheckpoint
from models_registry import uploads
from models_registry.models import Upload
from models_registry.upload_rules import DeclaredFile
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.huggingface import make_checkpoint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def begin(size: int) -> Upload:
    return uploads.upload_create(owner=None, served_model_name="tiny", files=[DeclaredFile("tiny.gguf", size)])


def put(upload: Upload, content: bytes) -> None:
    uploads.upload_receive(upload_id=upload.pk, number=0, offset=0, body=io.BytesIO(content))


def test_a_false_gguf_file_is_refused_with_the_first_piece() -> None:
    upload = begin(1 << 20)
    with pytest.raises(CorruptCheckpoint, match="doesn't begin like a GGUF file"):
        put(upload, b"PK\x03\x04" + bytes(40))


def test_a_gguf_file_is_uploaded_and_registered(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2),
        tmp_path / "made",
    )
    content = convert(directory, tmp_path / "made" / "tiny.gguf", "Q8_0").read_bytes()
    upload = begin(len(content))
    put(upload, content)
    uploads.upload_finish(upload_id=upload.pk, wait=True)
    upload.refresh_from_db()
    assert upload.state == "done", upload.reason
