"""The way of every request: into its model's engine, its events out, and off the books exactly once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from inference.errors import BlazrError, EngineError, GenerationFailed
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.worker.interfaces import OnEvents, OnFinished, Presence
from inference.worker.resident_models import Resident, Route

logger = logging.getLogger(__name__)

PREPARE_THREADS = 4
FEW_TOKENS = 4096
"""A prompt of no more token ids is prepared where it arrives: waking a thread for it would take longer."""


class RequestRouter:
    """Knows every request that is here; all methods are thread-safe but those that want the lock held.

    Args:
        condition: The manager's lock, which guards residents and routes; notified when a request has ended.
        presence: Where a model that has enough to do leaves messages to other workers.
    """

    def __init__(self, condition: threading.Condition, presence: Presence) -> None:
        self._condition = condition
        self._presence = presence
        self._routes: dict[str, Route] = {}
        self._prepare_threads = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._routes

    def __len__(self) -> int:
        return len(self._routes)

    def open(self, message: GenerateMessage, on_events: OnEvents, on_finished: OnFinished, resident: Resident) -> Route:
        """With the lock held: put a request on the books.

        Raises:
            ValueError: It is running already.
        """
        if message["request_id"] in self._routes:
            raise ValueError(f"request {message['request_id']!r} is running already")
        route = self._routes[message["request_id"]] = Route(message, on_events, on_finished, resident)
        return route

    def start(self, route: Route) -> None:
        """Hand a counted request to its engine; in another thread if there is more to do than to check token ids."""
        if _is_quick(route.message):
            self._prepare(route)
        else:
            self._prepare_threads.submit(self._prepare, route)

    def cancel(self, request_id: str) -> bool:
        """End a request early with an error event; False if it isn't here."""
        with self._condition:
            route = self._routes.get(request_id)
        if route is None:
            return False
        loop = route.resident.loop
        if loop is not None:
            loop.abort(request_id)
        return self.end(route, GenerationFailed("The request was cancelled."))

    def describe(self) -> list[dict[str, Any]]:
        """The requests that are here, oldest first, as plain values."""
        with self._condition:
            routes = sorted(self._routes.values(), key=lambda route: route.received_at)
            return [
                {
                    "id": route.message["request_id"],
                    "owner": route.message.get("owner", ""),
                    "checkpoint_id": route.message["model"],
                    "state": "running" if route.next_index else "waiting",
                    "tokens": route.num_tokens,
                    "received_at": route.received_at,
                }
                for route in routes
            ]

    def num_in_engines(self) -> int:
        """With the lock held: requests that don't wait for a load."""
        return sum(route.counted for route in self._routes.values())

    def forget_all(self) -> list[str]:
        """With the lock held: drop every request without an event; gives their ids."""
        unfinished = list(self._routes)
        self._routes.clear()
        return unfinished

    def stop(self) -> None:
        """Take nothing more."""
        self._prepare_threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, route: Route) -> None:
        """Tokenise, then hand over to the engine."""
        resident = route.resident
        assert resident.llm is not None
        assert resident.loop is not None
        request_id = route.message["request_id"]
        if not self._is_open(route):
            return
        try:
            prepared = resident.llm.prepare(route.message)
            resident.loop.submit(prepared)
        except BlazrError as error:
            self.end(route, error)
        except Exception:
            logger.exception("request %s could not be prepared", request_id)
            self.end(route, EngineError("The request could not be prepared because of an internal error."))
        else:
            if not self._is_open(route):  # cancelled between the two: the abort may have come before the submit
                resident.loop.abort(request_id)

    def dispatch(self, resident: Resident, events: list[GenerationEvent]) -> None:
        """In the engine's thread: pass the events of one step on, in one call per callable."""
        groups: dict[OnEvents, list[GenerationEvent]] = {}
        finished: list[Route] = []
        num_tokens = 0
        for event in events:
            route = self._routes.get(event["request_id"])
            if route is None or route.resident is not resident:
                continue
            route.next_index = event["index"] + 1
            count = len(event.get("token_ids", ()))
            route.num_tokens += count
            num_tokens += count
            groups.setdefault(route.on_events, []).append(event)
            if event["type"] in ("done", "error") and self._finish(route):
                finished.append(route)
        if num_tokens:
            resident.tokens.append((time.monotonic(), num_tokens))
        for on_events, group in groups.items():
            self._call(on_events, group)
        for route in finished:
            self._call(route.on_finished)
        if finished:
            self.regulate(resident)

    def refused(self, prepared: Any, error: BlazrError) -> None:
        """The engine doesn't take a request; in its thread."""
        with self._condition:
            route = self._routes.get(prepared.request_id)
        if route is not None:
            self.end(route, error)

    def end(self, route: Route, error: BlazrError) -> bool:
        """End a request with an error event, unless it has ended."""
        if not self._finish(route):
            return False
        event: GenerationEvent = {
            "request_id": route.message["request_id"],
            "attempt": route.message["attempt"],
            "index": route.next_index,
            "type": "error",
            "error": error.to_dict(),
        }
        self._call(route.on_events, [event])
        self._call(route.on_finished)
        self.regulate(route.resident)
        return True

    def _finish(self, route: Route) -> bool:
        """Take a request off the books; False if that was done already."""
        with self._condition:
            if not self._is_open(route):
                return False
            del self._routes[route.message["request_id"]]
            resident = route.resident
            if route.counted:
                resident.active -= 1
                resident.interactive -= route.is_interactive
            elif route in resident.waiting:
                resident.waiting.remove(route)
            resident.last_used, resident.last_used_at = time.monotonic(), time.time()
            self._condition.notify_all()
        return True

    def _is_open(self, route: Route) -> bool:
        return self._routes.get(route.message["request_id"]) is route

    def count(self, route: Route) -> None:
        """With the lock held: the request is its model's now."""
        route.counted = True
        route.resident.active += 1
        route.resident.interactive += route.is_interactive

    def regulate(self, resident: Resident) -> None:
        """Keep as many waiting requests here as bridge a second, leave the others to other workers.

        Kombu's blocking read takes up to a second to notice a queue that is consumed again. Jobs and lines of batches
        don't count: they give way in the engine, and must not keep interactive requests out of it.
        """
        with self._condition:
            if resident.plan is None or resident.status != "ready":
                return
            full, room = 2 * resident.plan.max_num_seqs, resident.plan.max_num_seqs * 3 // 2
            # With the lock held, or two threads could carry out their orders in the wrong order.
            if not resident.paused and resident.interactive >= full:
                resident.paused = True
                self._presence.pause(resident.checkpoint_id)
            elif resident.paused and resident.interactive <= room:
                resident.paused = False
                self._presence.resume(resident.checkpoint_id)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        try:
            function(*args)
        except Exception:
            logger.exception("a callback of a request failed")


def _is_quick(message: GenerateMessage) -> bool:
    params = message["params"]
    return (
        0 < len(message["prompt"].get("token_ids", ())) <= FEW_TOKENS
        and "echo" not in message
        and params.get("grammar") is None
        and params.get("n", 1) == 1
    )
