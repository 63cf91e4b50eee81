"""The digest of a piece: what its header may state, and that a piece that changed on its way is not stored."""

from __future__ import annotations

import base64
import hashlib
import io

import pytest

from inference.errors import Conflict, InvalidRequest
from models_registry import storage, uploads
from models_registry.upload_pieces import stated_digest
from models_registry.upload_rules import DeclaredFile

FIRST, SECOND = b"a" * 64, b"b" * 64
SHA = base64.b64encode(hashlib.sha256(FIRST).digest()).decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("storage_dirs")
def test_a_piece_that_changed_on_its_way_is_not_stored() -> None:
    files = [DeclaredFile("model.safetensors", 128), DeclaredFile("config.json", 64)]
    upload = uploads.upload_create(owner=None, served_model_name="sent", files=files)
    digest = hashlib.sha256(FIRST).digest()
    with pytest.raises(Conflict, match=r"a piece of config\.json has another SHA-256.*Send it again"):
        uploads.upload_receive(upload_id=upload.pk, number=1, offset=0, body=io.BytesIO(SECOND), digest=digest)
    assert not storage.part_path(upload.pk, 1).exists()
    uploads.upload_receive(upload_id=upload.pk, number=1, offset=0, body=io.BytesIO(FIRST), digest=digest)
    assert storage.part_path(upload.pk, 1).read_bytes() == FIRST


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", None),
        ("sha-512=:AAAA:", None),
        (f"sha-256=:{SHA}:", hashlib.sha256(FIRST).digest()),
        (f"sha-512=:AAAA:,  sha-256=:{SHA}:;q=1", hashlib.sha256(FIRST).digest()),
        ("not-sha-256=:AAAA:", None),
    ],
)
def test_the_digest_of_a_piece(header: str, found: bytes | None) -> None:
    assert stated_digest(header) == found


@pytest.mark.parametrize("value", ["", ":", "::", f":{SHA}", f"{SHA}:", SHA, f":{SHA[:-4]}:", ":ä:", ":" * 100_000])
def test_a_digest_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"Content-Digest states sha-256=.*between colons"):
        stated_digest(f"sha-256={value}")
