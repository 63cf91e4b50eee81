"""Limit the bytes of stored responses that this process reads, or still sends, at a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import orjson
from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpResponse

from inference.api.responses.conversations import stored_turn
from inference.api.responses.shared_limit import Share, SharedLimit
from inference.values.principal import Principal

BYTES_READ = SharedLimit(
    "bytes of stored responses that are read at a time",
    "try again when the others have been read.",
    total=8 * settings.BLAZR_MAX_BODY_BYTES,
    per_caller=4 * settings.BLAZR_MAX_BODY_BYTES,
)


async def hold_stored(response_id: str, principal: Principal) -> Share:
    """Return a share of ``BYTES_READ`` for a stored response, before its texts are read.

    Raises:
        NotFound: There is no such response, or another caller owns it.
        RateLimitExceeded, Unavailable: As ``SharedLimit.hold`` raises.
    """
    turn = await sync_to_async(stored_turn)(response_id=response_id, principal=principal)
    return BYTES_READ.hold(principal.tenant, turn.size_bytes)


class ReadResponse(HttpResponse):
    """A JSON response made of stored ones, which holds shares until it has been sent.

    Args:
        payload: The value.
        held: The shares, which ``close`` releases.
    """

    def __init__(self, payload: Any, held: ExitStack) -> None:
        super().__init__(orjson.dumps(payload), content_type="application/json")
        self._held = held

    def close(self) -> None:
        """Release the shares; the server calls this after the last byte, also without a client."""
        self._held.close()
        super().close()
