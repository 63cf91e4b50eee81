"""List the requests that run or wait, of all processes: what workers hold, and what no worker has taken yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import BlazrError, Conflict, GenerationCancelled
from inference.transport.control import cancel_generation
from inference.transport.questions import running_requests
from inference.transport.queue import fail_queued
from inference.transport.queue_places import open_requests, read_queues
from inference.values.queue_place import QueuePlace

_PART = re.compile(r"-\d{1,4}\Z")
"""Matches the suffix that one of several prompts adds to the request id; ids end with longer words."""
_TRIED_AGAIN = (("job-", "a queued job", "job"), ("batch_req_", "a line of a batch", "batch"))


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that has not ended.

    Attributes:
        owner: Tenant of the caller.
        state: ``running``, or ``waiting`` while no prompt of it has started.
        tokens: Generated so far.
        received_at: Unix time at which a worker took it; None: none has.
        place: Where it stands in its queue; None: it runs, or it is no request of a client.
        parts: Ids of its prompts at the workers.
    """

    request_id: str
    checkpoint_id: str
    owner: str
    state: str
    tokens: int = 0
    received_at: float | None = None
    place: QueuePlace | None = None
    parts: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    @property
    def cancel_advice(self) -> str:
        """Why it can't be cancelled by itself, with what can be; empty if it can."""
        for beginning, kind, whole in _TRIED_AGAIN:
            if self.request_id.startswith(beginning):
                return f"is an attempt at {kind}, which would be tried again; cancel the {whole} instead."
        return ""


def merged_requests(parts: Iterable[Mapping[str, Any]]) -> dict[str, RunningRequest]:
    """Return the requests of what workers hold, by id, oldest first; the prompts of a request are one entry."""
    found: dict[str, RunningRequest] = {}
    for part in sorted(parts, key=lambda item: float(item["received_at"])):
        request_id = _PART.sub("", part["id"])
        known = found.get(request_id)
        if known is None:
            known = RunningRequest(
                request_id, part["checkpoint_id"], part["owner"], part["state"], received_at=part["received_at"]
            )
        found[request_id] = replace(
            known,
            state="running" if part["state"] == "running" else known.state,
            tokens=known.tokens + part["tokens"],
            parts=(*known.parts, part["id"]),
            workers=tuple(sorted({*known.workers, part["worker_id"]})),
        )
    return found


async def unended_requests() -> list[RunningRequest]:
    """Return what runs, and what waits as far as ``open_requests`` lists it, oldest first.

    Raises:
        Unavailable: Redis can't be reached.
    """
    waiting = await open_requests()
    try:
        held = merged_requests(await running_requests())
    except BlazrError:  # no worker is alive, or none replied in time
        held = {}
    queues = await read_queues({item.checkpoint_id for item in waiting})
    parts_held = {part for request in held.values() for part in request.parts}
    for item in waiting:
        request_id = _PART.sub("", item.request_id)
        known = held.get(request_id) or RunningRequest(request_id, item.checkpoint_id, item.caller, "waiting")
        if item.request_id not in parts_held:
            known = replace(known, parts=(*known.parts, item.request_id))
        if known.state == "waiting" and known.place is None:
            known = replace(known, place=queues.place_of(item.request_id, item.checkpoint_id))
        held[request_id] = known
    return list(held.values())


async def request_cancel(request: RunningRequest) -> None:
    """Cancel all prompts of a request.

    Raises:
        Conflict: It would be tried again.
        Unavailable: Redis can't be reached.
    """
    if request.cancel_advice:
        raise Conflict(f"{request.request_id} {request.cancel_advice}", param="request_id")
    for part in request.parts:
        # A worker reports nothing of one that it hasn't taken.
        await fail_queued(part, GenerationCancelled("The request was cancelled."))
        await cancel_generation(part)
