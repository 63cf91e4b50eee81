"""Ends what is running under a key that has been revoked, or has expired, meanwhile.

New requests are refused within a second by the cache of keys (``inference.access.api_keys``). Those that run are
looked after here, all of a process together: one query every ``WATCH_S`` while any request of a key is open, none on
anybody's path.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterable
from typing import Protocol

from inference.errors import BlazrError, NotAuthenticated
from inference.host.coroutines import PerLoop
from inference.models import ApiKey

logger = logging.getLogger(__name__)

WATCH_S = 2.0


class Watched(Protocol):
    """Something that runs under a key."""

    def give_up(self, error: BlazrError) -> None:
        """End it with ``error``."""
        ...


class KeyWatch:
    """Running things of one event loop by their keys."""

    def __init__(self) -> None:
        self._open: dict[Watched, int] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, watched: Watched, key_id: int) -> None:
        """It runs under the key from now on."""
        self._open[watched] = key_id
        if self._task is None:
            # A context of its own: the first request's principal and trace aren't the others'.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    def remove(self, watched: Watched) -> None:
        """It has ended."""
        self._open.pop(watched, None)

    async def _run(self) -> None:
        try:
            while self._open:
                await asyncio.sleep(WATCH_S)
                await self._look()
        finally:
            self._task = None

    async def _look(self) -> None:
        keys = set(self._open.values())
        if not keys:
            return
        try:
            valid = await asyncio.to_thread(_valid_keys, keys)
        except Exception as error:
            # The database is away: nobody can say that a key is not valid.
            logger.warning("the keys of open requests could not be looked up: %s", type(error).__name__)
            return
        for watched, key_id in list(self._open.items()):
            if key_id in keys and key_id not in valid:
                watched.give_up(NotAuthenticated("The API key was revoked, or has expired, while the request ran."))


key_watch = PerLoop(KeyWatch)
"""The watch of the running loop."""


def _valid_keys(keys: Iterable[int]) -> set[int]:
    from django.db import connections

    try:
        return set(ApiKey.objects.filter(ApiKey.valid(), pk__in=list(keys)).values_list("pk", flat=True))
    finally:
        # The thread is the pool's, and may rest for long.
        connections.close_all()
