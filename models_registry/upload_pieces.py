"""Read a piece of a file from a request's body, and check the digest that its header states."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import IO, TYPE_CHECKING

from inference.errors import Conflict, InvalidRequest, RequestTooLarge
from models_registry.upload_rules import CHUNK_BYTES

if TYPE_CHECKING:
    from models_registry.models import UploadFile

_SHA256 = re.compile(r"(?:^|,)[ \t]*sha-256[ \t]*=[ \t]*(?P<value>[^,;]*)")
_HEADER = "Content-Digest"


def stated_digest(header: str) -> bytes | None:
    """Return the SHA-256 that a ``Content-Digest`` header states (RFC 9530); None: it states none.

    Raises:
        InvalidRequest: It states something else than 32 bytes in base64 between colons.
    """
    found = _SHA256.search(header)
    if found is None:
        return None
    value = found["value"].strip()
    try:
        digest = base64.b64decode(value[1:-1], validate=True)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size or value[0] + value[-1] != "::":
        raise InvalidRequest(
            f"{_HEADER} states sha-256={value[:80]}; write the 32 bytes of the digest in base64 between colons.",
            param=_HEADER,
        )
    return digest


def read_piece(body: IO[bytes], file: UploadFile, digest: bytes | None) -> bytes:
    """Read the next piece of a file, up to ``CHUNK_BYTES``.

    Args:
        digest: SHA-256 of the piece; None: it isn't compared.

    Raises:
        RequestTooLarge: The piece is over the limit, or goes beyond the declared size.
        InvalidRequest: It is empty.
        Conflict: It has another digest.
    """
    num_left = min(CHUNK_BYTES, file.size_bytes - file.received_bytes)
    parts, length = [], 0
    while length <= num_left and (part := body.read(num_left + 1 - length)):
        parts.append(part)
        length += len(part)
    if length > num_left:
        limit = "the declared size" if num_left < CHUNK_BYTES else f"the limit of {CHUNK_BYTES} bytes a piece"
        raise RequestTooLarge(f"the piece of {file.name} goes beyond {limit}; nothing of it was kept.", param=file.name)
    if length == 0:
        raise InvalidRequest(f"the piece of {file.name} is empty.", param=file.name)
    piece = b"".join(parts)
    if digest is not None and hashlib.sha256(piece).digest() != digest:
        raise Conflict(
            f"a piece of {file.name} has another SHA-256 than its {_HEADER} states, so it changed on its way; nothing "
            "of it was kept. Send it again.",
            param=_HEADER,
        )
    return piece
