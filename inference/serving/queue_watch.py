"""QueueWatch: report to waiting requests where they stand, while they ask for it.

One task per event loop reads the queues once a second for all requests that watch, and ends with the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

from inference.errors import BlazrError
from inference.host.coroutines import PerLoop, run_in_background
from inference.transport.queue_places import Queues, read_queues
from inference.values.queue_place import QueuePlace

logger = logging.getLogger(__name__)

PERIOD_S = 1.0


class Watcher:
    """One waiting request; ``places`` yields where it stands."""

    def __init__(self, request_id: str, checkpoint_id: str) -> None:
        self._request_id = request_id
        self.checkpoint_id = checkpoint_id
        self._last: QueuePlace | None = None
        self._changed = asyncio.Event()
        self._has_ended = False

    async def places(self) -> AsyncIterator[QueuePlace | None]:
        """Yield the place after each reading, None if it isn't known, until ``end``; a late reader gets the newest."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._has_ended:
                return
            yield self._last

    def take(self, queues: Queues | None) -> None:
        """Take what was read; None: nothing could be read."""
        self._last = None if queues is None else queues.place_of(self._request_id, self.checkpoint_id)
        self._changed.set()

    def end(self) -> None:
        """End ``places``."""
        self._has_ended = True
        self._changed.set()


class QueueWatch:
    """The watching requests of one event loop."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, request_id: str, checkpoint_id: str) -> Iterator[Watcher]:
        """Watch a request that waits, in the block.

        Args:
            request_id: Id of the request at the workers.
            checkpoint_id: Its model.
        """
        watcher = Watcher(request_id, checkpoint_id)
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = run_in_background(self._run())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            watcher.end()

    async def _run(self) -> None:
        while self._watchers:
            queues: Queues | None = None
            try:
                queues = await read_queues({watcher.checkpoint_id for watcher in self._watchers})
            except BlazrError as error:  # without Redis nothing starts either; the hub has said so once
                logger.debug("the queues could not be read: %s", error.message)
            except Exception:  # such as a damaged state of a worker; the next reading may be whole
                logger.exception("the queues could not be read")
            for watcher in list(self._watchers):
                watcher.take(queues)
            await asyncio.sleep(PERIOD_S)


_watch = PerLoop(QueueWatch)


def queue_watch() -> QueueWatch:
    """Return the watch of this event loop."""
    return _watch()
