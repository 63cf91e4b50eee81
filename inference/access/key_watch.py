"""End running requests whose API key was revoked or has expired meanwhile.

New requests are refused within a second by the cache of keys (``inference.access.api_keys``). For running requests, one
query for all of a process looks up their keys every ``WATCH_S``, off the path of any request.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterable
from typing import Protocol

from django.db import connections

from inference.errors import BlazrError, NotAuthenticated
from inference.host.coroutines import PerLoop
from inference.models import ApiKey

logger = logging.getLogger(__name__)

WATCH_S = 2.0


class Watched(Protocol):
    """A request that runs under a key."""

    def give_up(self, error: BlazrError) -> None:
        """End the request with ``error``."""
        ...


class KeyWatch:
    """Watches the keys of one event loop's running requests."""

    def __init__(self) -> None:
        self._open: dict[Watched, int] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, watched: Watched, key_id: int) -> None:
        """Watch the key of a request that starts."""
        self._open[watched] = key_id
        if self._task is None:
            # In a context of its own, without the principal and the trace of the first request.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    def remove(self, watched: Watched) -> None:
        """Stop watching for a request that has ended."""
        self._open.pop(watched, None)

    async def _run(self) -> None:
        try:
            while self._open:
                await asyncio.sleep(WATCH_S)
                await self._check_keys()
        finally:
            self._task = None

    async def _check_keys(self) -> None:
        keys = set(self._open.values())
        if not keys:
            return
        try:
            valid = await asyncio.to_thread(_valid_keys, keys)
        except Exception as error:
            # Without the database no key is known to be invalid.
            logger.warning("the keys of open requests could not be looked up: %s", type(error).__name__)
            return
        for watched, key_id in list(self._open.items()):
            if key_id in keys and key_id not in valid:
                watched.give_up(NotAuthenticated("The API key was revoked, or has expired, while the request ran."))


key_watch = PerLoop(KeyWatch)
"""The watch of the running loop."""


def _valid_keys(keys: Iterable[int]) -> set[int]:
    try:
        return set(ApiKey.objects.filter(ApiKey.valid(), pk__in=list(keys)).values_list("pk", flat=True))
    finally:
        # The thread belongs to the default pool, and may be idle for long.
        connections.close_all()
