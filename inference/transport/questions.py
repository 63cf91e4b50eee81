"""Query the workers from the web process: which requests run, whether a model fits; load and unload adapters."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from inference.errors import BlazrError, Unavailable
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client
from inference.transport.control import send_control
from inference.transport.worker_states import worker_states
from inference.values.states import ResidentAdapter

REPLY_TIMEOUT_S = 3.0
ADAPTER_TIMEOUT_S = {"load-adapter": 60.0, "unload-adapter": 35.0}
"""Seconds for an order; a worker waits 30 for a place in its memory or a step, and reads files before it loads."""
POLL_TIMEOUT_S = 0.5
MIN_POLL_S = 0.01
_FITTING = ("resident", "fits", "fits_after_eviction")


async def query_workers(kind: str, **values: Any) -> list[dict[str, Any]]:
    """Send a query to all workers; return the replies that arrive in time.

    Args:
        kind: ``requests`` or ``fit``.
        values: Further members of the query.

    Raises:
        Unavailable: Redis can't be reached, no worker is alive, or no worker replied in time.
    """
    workers = await worker_states()
    if not workers:
        raise _no_worker()
    replies = await _collect(await _send(kind, values), set(workers), REPLY_TIMEOUT_S)
    if not replies:
        raise Unavailable("No worker replied; the workers may be busy starting. Try again.", retry_after_s=2)
    return replies


async def _send(kind: str, values: Mapping[str, Any]) -> str:
    query_id = secrets.token_hex(12)
    await send_control("query", json.dumps({"id": query_id, "kind": kind, **values}))
    return query_id


async def _collect(query_id: str, pending: set[str], timeout_s: float) -> list[dict[str, Any]]:
    """Return replies until all of ``pending`` have replied; it keeps those that live and haven't in time."""
    replies: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    async with redis_client() as client:
        while pending:
            left_s = deadline - time.monotonic()
            wait_s = min(max(left_s, MIN_POLL_S), POLL_TIMEOUT_S)
            found = await client.blpop([redis_keys.replies(query_id)], timeout=wait_s)
            if found is not None:
                replies.append(json.loads(found[1]))
                pending.discard(replies[-1]["worker_id"])
            elif left_s <= 0:  # this process may have been the slow one: what has arrived counts
                break
            else:
                pending.intersection_update(await worker_states())
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


async def adapter_order(
    kind: Literal["load-adapter", "unload-adapter"], checkpoint_id: str, adapter_id: str
) -> list[ResidentAdapter]:
    """Let all workers that hold a model load a LoRA adapter of it ahead of its requests, or unload it.

    Only workers whose heartbeat has the model are waited for, and only while they live.

    Returns:
        The adapter as each worker has it in memory now.

    Raises:
        Unavailable: Redis can't be reached, no worker runs that could load it, or one that holds the model didn't
            reply in time.
        BlazrError: A worker couldn't unload it, or couldn't load it and none has; the error of the first one.
    """
    is_load = kind == "load-adapter"
    workers = await worker_states()
    if is_load and not workers:
        raise _no_worker()
    pending = {
        name for name, state in workers.items() if any(item.checkpoint_id == checkpoint_id for item in state.models)
    }
    timeout_s = ADAPTER_TIMEOUT_S[kind]
    values = {"checkpoint_id": checkpoint_id, "adapter_id": adapter_id, "expires_at": time.time() + timeout_s}
    # Also where none is waited for: one may have loaded the model since its heartbeat.
    replies = await _collect(await _send(kind, values), pending, timeout_s)
    found = [ResidentAdapter.from_dict(reply["adapter"]) for reply in replies if reply.get("adapter")]
    errors = [reply["error"] for reply in replies if "error" in reply]
    if is_load and found:
        return found
    if errors:
        raise BlazrError.from_dict(errors[0])
    if pending:
        raise Unavailable(
            f"A worker that holds the model hasn't replied in {timeout_s:g} s; the order may still be carried out. "
            "Try again.",
            retry_after_s=5,
        )
    return found


def _no_worker() -> Unavailable:
    return Unavailable("No worker is running; start one, or wait for it.", retry_after_s=5)


def fits_somewhere(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a worker in ``model_fit``'s result could hold the model, after evictions if needed."""
    return any(item["verdict"] in _FITTING for item in found)
