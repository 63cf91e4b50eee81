"""RequestKey: the idempotency key of a request, as it is kept in the row that the request makes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from inference.errors import IdempotencyKeyReused


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The header ``Idempotency-Key`` of a request.

    A row keeps both members, so that a retry finds what the first request made, even if the process that made it ended
    before it could keep the response.

    Attributes:
        name: SHA-256 of the key, as hexadecimal digits.
        digest: SHA-256 of the whole request, likewise.
    """

    name: str
    digest: str

    @classmethod
    def of(cls, key: str, digest: str) -> RequestKey:
        """Return the key of a request.

        Args:
            key: The header's value.
            digest: See ``RequestKey.digest``.
        """
        return cls(hashlib.sha256(key.encode()).hexdigest(), digest)

    def check_digest(self, stored: str) -> None:
        """Refuse a request that differs from the one that made a row.

        Args:
            stored: The digest of the row's request.

        Raises:
            IdempotencyKeyReused: The digests differ.
        """
        if stored != self.digest:
            raise IdempotencyKeyReused(
                "The idempotency key came with another request before; choose a new key for each request.",
                param="Idempotency-Key",
            )
