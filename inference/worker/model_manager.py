"""ModelManager: which models this worker holds, and the way of every request into the right engine.

A model is loaded by its first request (or an order to load), one load at a time. Requests wait for the
load and get its error if it fails; the error is remembered for two seconds, for requests that are already on
their way, and forgotten then, so that a later request tries again. When the memory budget would be
exceeded, the least recently used models go first: idle ones at once, busy ones when their requests
have ended. What a request uses is never freed under it. A model that was just loaded stays for a while, or two that
don't fit together would push each other out with every request.

Knows no Celery, no Redis and no Django: those are behind ``Presence`` and ``LoadPlan``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from inference.errors import BlazrError, EngineDead, GenerationFailed
from inference.values.messages import GenerateMessage
from inference.values.states import Departure, ResidentModel
from inference.worker.eviction import fit_report
from inference.worker.interfaces import LoadPlan, OnEvents, OnFinished, Presence
from inference.worker.loader import ModelLoader
from inference.worker.request_router import RequestRouter
from inference.worker.resident_models import Resident

logger = logging.getLogger(__name__)

FAILED_FOR_S = 2.0
EVICTION_WAIT_S = 60.0
MAX_DEPARTURES = 20


class ModelManager:
    """Loads, serves and evicts models; all methods are thread-safe.

    Args:
        plan: Finds out how to load a checkpoint; raises ``BlazrError`` if that can't be.
        presence: See there.
        budget_bytes: Memory for all models together.
        on_dead: An engine can't go on: the process has to be replaced. Its requests get no event.
        min_residence_s: A model stays at least so long, and at least as long as its load took, before it makes room
            for another one; 0: it goes at once.
    """

    def __init__(
        self,
        *,
        plan: Callable[[str], LoadPlan],
        presence: Presence,
        budget_bytes: int,
        on_dead: Callable[[EngineDead], None],
        min_residence_s: float = 0.0,
    ) -> None:
        self._plan = plan
        self._presence = presence
        self.budget_bytes = budget_bytes
        self._condition = threading.Condition()
        self._residents: dict[str, Resident] = {}
        self._router = RequestRouter(self._condition, presence)
        self._closing = False
        self._loader = ModelLoader(
            self._condition,
            self._residents,
            self._router,
            presence,
            plan=plan,
            budget_bytes=budget_bytes,
            on_dead=on_dead,
            min_residence_s=min_residence_s,
        )

    # --- requests

    def submit(self, message: GenerateMessage, on_events: OnEvents, on_finished: OnFinished) -> None:
        """Take a request; loads its model if need be. Returns at once.

        Args:
            message: ``model`` is the checkpoint's id. An id that is running already is an error of the caller.
            on_events: Gets the request's events in order, exactly one of them terminal. Called from engine and
                other threads; events of one step whose requests gave the *same* callable come in one call.
            on_finished: Called once, after the terminal event was passed on.
        """
        checkpoint_id = message["model"]
        failure: BlazrError | None = None
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            is_new = resident is None
            if resident is None:
                resident = Resident(checkpoint_id)
            route = self._router.open(message, on_events, on_finished, resident)
            self._residents[checkpoint_id] = resident
            resident.last_used, resident.last_used_at = time.monotonic(), time.time()
            resident.keep_alive_s = message.get("keep_alive_s", resident.keep_alive_s)
            if self._closing:
                failure = GenerationFailed("The worker is stopping; send the request again.")
            elif resident.status == "failed":
                failure = resident.error
            elif resident.status == "ready":
                self._router.count(route)
            else:
                resident.waiting.append(route)
            if is_new and not self._closing:
                self._loader.enqueue(resident)
        if failure is not None:
            self._router.end(route, failure)
        elif route.counted:
            self._router.start(route)
            self._router.regulate(resident)
        if is_new and failure is None:
            self._presence.appear(checkpoint_id)
            self._presence.changed()

    def cancel(self, request_id: str) -> bool:
        """End a request early with an error event; False if it isn't here."""
        return self._router.cancel(request_id)

    def is_running(self, request_id: str) -> bool:
        """Whether the request is here and has not ended."""
        return request_id in self._router

    @property
    def num_active(self) -> int:
        """Requests that are here, waiting ones included."""
        return len(self._router)

    def requests(self) -> list[dict[str, Any]]:
        """The requests that are here, oldest first, as plain values."""
        return self._router.describe()

    # --- models

    def ensure(self, checkpoint_id: str, *, pinned: bool = False) -> None:
        """Load a model that isn't here; ``pinned``: never unload it by itself."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is not None and resident.status != "failed":
                resident.pinned |= pinned
                resident.last_used = time.monotonic()
                resident.unload_asked = False
                if resident.status == "unloading":
                    resident.reload_asked = True
                    return
                if resident.paused:
                    return
                # Somebody asked although it is here: the announcement is lost (Redis forgot it), so repeat it.
            elif self._closing:
                return
            else:
                resident = self._residents[checkpoint_id] = Resident(checkpoint_id, pinned=pinned)
                self._loader.enqueue(resident)
        self._presence.appear(checkpoint_id)
        self._presence.changed()

    def unload(self, checkpoint_id: str) -> bool:
        """Let a model go once its requests have ended; False if it isn't here."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None or resident.status == "failed":
                return False
            resident.pinned = False
            if resident.status == "loading":
                resident.unload_asked = True
                return True
            if resident.status == "unloading":
                resident.reload_asked = False
                return True
            self._loader.begin_unload(resident, "it was asked to go")
        return True

    def set_pinned(self, checkpoint_id: str, pinned: bool) -> bool:
        """Keep a model until it is asked to go, or no longer; False if it isn't here."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None:
                return False
            resident.pinned = pinned
            resident.last_used = time.monotonic()
        self._presence.changed()
        return True

    def fit(self, checkpoint_id: str) -> dict[str, Any]:
        """Whether a model would fit here, and what it would take; plain values.

        Raises:
            BlazrError: It can't be loaded at all.
        """
        plan = self._plan(checkpoint_id)
        with self._condition:
            others = [item for item in self._residents.values() if item.checkpoint_id != checkpoint_id]
            own = self._residents.get(checkpoint_id)
            is_here = own is not None and not own.has_failed
            return fit_report(plan, others, is_here=is_here, budget_bytes=self.budget_bytes)

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        return self._loader.departures

    def tick(self) -> None:
        """Once a second: keep-alive, and forgetting failed loads."""
        now = time.monotonic()
        forgotten: list[Resident] = []
        with self._condition:
            for resident in self._residents.values():
                if resident.status == "failed" and now - resident.failed_at > FAILED_FOR_S:
                    resident.status = "unloading"
                    forgotten.append(resident)
                elif (
                    resident.status == "ready"
                    and not resident.pinned
                    and resident.active == 0
                    and 0 <= resident.wanted_keep_alive_s < now - resident.last_used
                ):
                    self._loader.begin_unload(resident, f"it was not used for {resident.wanted_keep_alive_s:g} s")
                resident.forget_old_tokens(now)
        for resident in forgotten:
            self._loader.remove(resident)

    def describe(self) -> tuple[ResidentModel, ...]:
        """The models as people see them."""
        with self._condition:
            return tuple(item.describe() for item in self._residents.values() if not item.has_failed)

    @property
    def memory_bytes(self) -> int:
        """Memory that models take, or have been promised."""
        with self._condition:
            return sum(item.memory_bytes for item in self._residents.values())

    def load_cost_s(self) -> float:
        """Seconds of the longest load so far, room made for it included; 0: none was seen."""
        return self._loader.load_cost_s

    def step_age_s(self) -> float:
        """Seconds since the last step of the slowest engine that has work; 0: none has."""
        with self._condition:
            loops = [item.loop for item in self._residents.values() if item.loop is not None]
        now = time.monotonic()
        return max((now - loop.last_step_at for loop in loops if loop.is_busy), default=0.0)

    def drain(self, timeout_s: float) -> list[str]:
        """Take nothing new, let running requests end, stop the engines.

        Requests that wait for a load, and those that don't end in time, get no event.

        Returns:
            The ids of the requests that didn't end here.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._closing = True
            self._loader.close()
            while self._router.num_in_engines():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            unfinished = self._router.forget_all()
            residents = list(self._residents.values())
        for resident in residents:
            if resident.loop is not None:
                resident.loop.stop(drain=False, timeout_s=5)
            if resident.llm is not None:
                resident.llm.close()
        self._router.stop()
        return unfinished
