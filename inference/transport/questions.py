"""Query the workers from the web process: which requests run, and whether a model would fit."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from inference.errors import BlazrError, Unavailable
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client
from inference.transport.control import send_control
from inference.transport.worker_states import worker_states

REPLY_TIMEOUT_S = 3.0
POLL_TIMEOUT_S = 0.5
MIN_POLL_S = 0.01
_FITTING = ("resident", "fits", "fits_after_eviction")


async def query_workers(kind: str, **values: Any) -> list[dict[str, Any]]:
    """Send a query to all workers; return the replies that arrive within ``REPLY_TIMEOUT_S``.

    Args:
        kind: ``requests`` or ``fit``.
        values: Further members of the query.

    Raises:
        Unavailable: Redis can't be reached, no worker is alive, or no worker replied in time.
    """
    workers = await worker_states()
    if not workers:
        raise Unavailable("No worker is running; start one, or wait for it.", retry_after_s=5)
    query_id = secrets.token_hex(12)
    await send_control("query", json.dumps({"id": query_id, "kind": kind, **values}))
    replies: list[dict[str, Any]] = []
    deadline = time.monotonic() + REPLY_TIMEOUT_S
    async with redis_client() as client:
        while len(replies) < len(workers):
            left_s = deadline - time.monotonic()
            wait_s = min(max(left_s, MIN_POLL_S), POLL_TIMEOUT_S)
            found = await client.blpop([redis_keys.replies(query_id)], timeout=wait_s)
            if found is not None:
                replies.append(json.loads(found[1]))
            elif left_s <= 0:  # this process may have been the slow one: what has arrived counts
                break
    if not replies:
        raise Unavailable("No worker replied; the workers may be busy starting. Try again.", retry_after_s=2)
    return replies


async def running_requests() -> list[dict[str, Any]]:
    """Return the requests of all callers that the workers hold, one entry per prompt."""
    replies = await query_workers("requests")
    return [{**item, "worker_id": reply["worker_id"]} for reply in replies for item in reply.get("requests", ())]


async def model_fit(checkpoint_id: str, sizes: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return each worker's report whether the model would fit.

    Args:
        sizes: Tokens of a sequence and sequences at once, in place of the model's settings; None: these.

    Raises:
        BlazrError: No worker could check the model; the error of the first worker.
    """
    replies = await query_workers("fit", checkpoint_id=checkpoint_id, sizes=sizes)
    found = [{"worker_id": reply["worker_id"], **reply["fit"]} for reply in replies if "fit" in reply]
    if not found:
        raise BlazrError.from_dict(replies[0]["error"])
    return found


def fits_somewhere(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a worker in ``model_fit``'s result could hold the model, after evictions if needed."""
    return any(item["verdict"] in _FITTING for item in found)
