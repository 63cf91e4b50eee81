"""Remember for a moment which callers the full queue of a model has refused, and refuse their next requests at once.

Such a refusal costs neither the validation of a body nor a call of Redis. It is forgotten after ``REMEMBERED_S``, and
when a request of the same model ends in this process, under whatever name. Until then a place that became free
elsewhere stays free; the engines have the full queue to work on.
"""

from __future__ import annotations

import time

from inference.records import metrics
from inference.transport.open_requests import NoPlace
from inference.values.principal import Principal

REMEMBERED_S = 0.1
MAX_MODELS = 256
MAX_CALLERS = 4096
"""Most models, and callers of one model, that are remembered."""


class _Refusal:
    __slots__ = ("error", "served_name", "until")

    def __init__(self, error: NoPlace, served_name: str) -> None:
        self.error = error
        self.served_name = served_name
        self.until = time.monotonic() + REMEMBERED_S


class FullQueues:
    """The last refusals of full queues, by the model's name in the request, then by caller."""

    def __init__(self) -> None:
        self._refusals: dict[str, dict[str, _Refusal]] = {}
        self._requested_names: dict[str, set[str]] = {}  # served name to names and aliases

    def record(self, model: str, principal: Principal, error: NoPlace, *, served_name: str) -> None:
        """Remember that a request of ``principal`` was refused.

        Args:
            model: Name of the model in the request.
            principal: The caller, who may use the model.
            error: The refusal.
            served_name: The model's own name, for ``forget`` and metrics.
        """
        if len(self._refusals) >= MAX_MODELS:
            self._refusals.clear()
            self._requested_names.clear()
        self._requested_names.setdefault(served_name, set()).add(model)
        callers = self._refusals.setdefault(model, {})
        if len(callers) >= MAX_CALLERS:
            callers.clear()
        callers[principal.tenant] = _Refusal(error, served_name)

    def check(self, model: object, principal: Principal, *, endpoint: str) -> None:
        """Refuse and count a request of a caller who was refused a moment ago; in any thread.

        Args:
            model: Name of the model in the request, which may be of any type.
            principal: The caller.
            endpoint: The API's name, for metrics.

        Raises:
            NoPlace: The queue was full.
        """
        callers = self._refusals.get(model) if isinstance(model, str) else None
        found = callers.get(principal.tenant) if callers else None
        if found is None or found.until < time.monotonic():
            return
        error = found.error
        metrics.child(metrics.REQUESTS, found.served_name, endpoint, error.code).inc()
        metrics.count_for_key(found.served_name, principal.kind, error.code, {})
        raise error.again()

    def forget(self, served_name: str) -> None:
        """Ask the queue of a model again, because a request has ended.

        Args:
            served_name: The model's own name, not an alias: requests under all its names share the queue.
        """
        for model in self._requested_names.pop(served_name, ()):
            self._refusals.pop(model, None)


_queues = FullQueues()


def full_queues() -> FullQueues:
    """Return the ``FullQueues`` of this process."""
    return _queues
