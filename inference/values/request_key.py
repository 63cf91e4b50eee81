"""RequestKey: the idempotency key of a request, as it is kept in the row that the request makes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from inference.errors import IdempotencyKeyReused


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The header ``Idempotency-Key`` of a request.

    A row keeps ``name`` and ``digest``, so that a retry finds what the first request made, even if the process that
    made it ended before its response was sent.

    Attributes:
        text: The key as the client sent it.
        digest: SHA-256 of the whole request, as hexadecimal digits.
    """

    text: str
    digest: str

    @property
    def name(self) -> str:
        """SHA-256 of the key, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def check_digest(self, stored: str) -> None:
        """Refuse a request that differs from the one that made a row.

        Raises:
            IdempotencyKeyReused: The digests differ.
        """
        if stored != self.digest:
            raise IdempotencyKeyReused(
                f"The idempotency key {self.text[:60]!r} came with another request before; choose a new key for each "
                "request.",
                param="Idempotency-Key",
            )
