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
from tests.inference.modelling.gguf.ggjt_writer import convert_to_ggjt, llama_tokens
from tests.inference.modelling.huggingface import make_checkpoint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def begin(size: int, name: str = "tiny.gguf") -> Upload:
    return uploads.upload_create(owner=None, served_model_name="tiny", files=[DeclaredFile(name, size)])


def put(upload: Upload, content: bytes) -> None:
    uploads.upload_receive(upload_id=upload.pk, number=0, offset=0, body=io.BytesIO(content))


@pytest.mark.parametrize(("name", "format_"), [("tiny.gguf", "GGUF"), ("tiny.ggml", "ggjt")])
def test_a_false_file_is_refused_with_the_first_piece(name: str, format_: str) -> None:
    upload = begin(1 << 20, name)
    with pytest.raises(CorruptCheckpoint, match=f"doesn't begin like a {format_} file"):
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


def test_a_ggjt_file_is_uploaded_and_registered(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(
        LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2),
        tmp_path / "made",
    )
    path = convert_to_ggjt(directory, tmp_path / "made" / "tiny.ggml", "Q8_0", tokens=llama_tokens(300))
    upload = begin(path.stat().st_size, "tiny.ggml")
    put(upload, path.read_bytes())
    uploads.upload_finish(upload_id=upload.pk, wait=True)
    upload.refresh_from_db()
    assert upload.state == "done", upload.reason
    assert upload.checkpoint is not None
    assert upload.checkpoint.inspection["tokenizer"]["kind"] == "ggjt"
