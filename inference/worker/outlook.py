"""Expect when further requests of a model could start at this worker, from its requests and the times of earlier ones.

The functions are called with the lock of ``ResidentModels`` held.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from itertools import chain

from inference.values.messages import GenerationEvent
from inference.values.queue_place import MAX_LISTED, StartOutlook
from inference.worker.resident import ActiveRequest, Resident
from inference.worker.service_times import ServiceTimes


def start_outlook(
    resident: Resident,
    residents: Iterable[Resident],
    requests: Iterable[ActiveRequest],
    waiting_ids: Sequence[str],
    times: Mapping[str, ServiceTimes],
) -> StartOutlook:
    """Return when further requests of ``resident`` could start.

    Args:
        residents: All models of this worker.
        requests: All requests of this worker.
        waiting_ids: Requests of the model that wait for a place in its engine, in the order of their starts.
        times: Times of earlier requests and loads by checkpoint id.
    """
    own = times.get(resident.checkpoint_id) or ServiceTimes()
    if resident.status != "ready" or resident.plan is None:
        ids = tuple(request.request_id for request in resident.waiting if request.is_interactive)
        requests = list(requests)
        left_s = _expected_load_s(resident, list(residents), requests, times)
        evicts = resident.evicts if resident.status == "loading" else ""  # an unloading one's is of its last load
        return StartOutlook(ids[:MAX_LISTED], load_left_s=left_s, evicts=evicts)
    max_running = resident.plan.max_num_seqs
    waiting = set(waiting_ids)
    inside = [
        request
        for request in requests
        if request.resident is resident and request.in_engine and request.is_interactive
        and request.request_id not in waiting
    ]  # fmt: skip
    num_inside = sum(request.num_choices for request in inside)
    inside.sort(key=lambda request: not request.num_tokens)  # those without a token may wait in the engine
    running = list(chain.from_iterable([request] * request.num_choices for request in inside))[:max_running]
    remaining = [(request, _remaining_s(request, own)) for request in running]
    known = [(request, left) for request, left in remaining if left is not None]
    request_s = own.request_s([_running_s(request) + left for request, left in known])
    return StartOutlook(
        waiting_ids=tuple(waiting_ids[:MAX_LISTED]),
        num_places=resident.plan.max_in_engine,
        num_free=max(0, resident.plan.max_in_engine - num_inside - len(waiting_ids)),
        free_in_s=tuple(sorted(round(left, 3) for _, left in known)[:MAX_LISTED]),
        request_s=round(request_s, 3),
    )


def _expected_load_s(
    resident: Resident,
    residents: Sequence[Resident],
    requests: Sequence[ActiveRequest],
    times: Mapping[str, ServiceTimes],
) -> float | None:
    """Return the expected seconds until a model that isn't ready is loaded; None: nothing is known."""
    own, now = times.get(resident.checkpoint_id) or ServiceTimes(), time.monotonic()
    if resident.status == "loading" and resident.reserved_at:
        return own.remaining_load_s(elapsed_s=now - resident.reserved_at, progress=resident.progress)
    if not own.load_s:
        return None
    leaving_s = max(0.0, resident.evictable_at - now)
    for other in residents:
        if other.status == "unloading":
            ends = [_remaining_s(request, times.get(other.checkpoint_id) or ServiceTimes()) for request in requests
                    if request.resident is other and request.in_engine]  # fmt: skip
            leaving_s = max([leaving_s, *(left for left in ends if left is not None)])
        elif other is not resident and other.status == "loading" and other.reserved_at:
            leaving_s += _expected_load_s(other, [], [], times) or 0.0
    return leaving_s + own.load_s


def record_end(request: ActiveRequest, event: GenerationEvent, times: MutableMapping[str, ServiceTimes]) -> None:
    """Record the times of a request that ends with ``event``, and add its waits to the usage."""
    usage, params = event.get("usage"), request.message["params"]
    if usage is None:
        return
    usage["waits"], usage["evicted"] = request.waits, request.evicted
    if request.is_interactive:
        times[request.message["model"]].record(usage, params.get("max_tokens"), request.num_choices)


def _remaining_s(request: ActiveRequest, times: ServiceTimes) -> float | None:
    return times.remaining_s(
        max_tokens=request.message["params"].get("max_tokens"),
        num_tokens=request.num_tokens / request.num_choices,
        running_s=_running_s(request),
    )


def _running_s(request: ActiveRequest) -> float:
    return time.monotonic() - request.first_token_at if request.first_token_at else 0.0
