"""Load LoRA adapters ahead of the requests that name them, unload them, and forget removed ones."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any

from inference.errors import BlazrError, Unavailable
from inference.values.states import ResidentAdapter
from inference.worker.adapters import NeedsReload, PinnedAdapters, ServedAdapters, knows, resident_adapters
from inference.worker.resident import Engine

logger = logging.getLogger(__name__)

PLACE_WAIT_S = 30.0
"""Seconds for which an adapter waits for a place in memory that running requests of others have, and for its read."""
RETRY_S = 5.0
"""Seconds before the second try to load the adapters that belong to a model; each later pause is twice as long."""
MAX_RETRY_S = 60.0
"""The longest of these pauses."""


class AdapterOrders:
    """Carries out what people order; thread-safe, and slow: an order may read gigabytes.

    Args:
        adapters: Makes adapters known to models.
        engines: Returns the engines of all models that are loaded here.
        pinned: Finds the adapters that are loaded with a model.
        reload: Loads a model again with room for an adapter of so many bytes; raises ``BlazrError`` if it has none.
    """

    def __init__(
        self,
        adapters: ServedAdapters,
        *,
        engines: Callable[[], Iterable[Engine]],
        pinned: PinnedAdapters,
        reload: Callable[[str, int], None],
    ) -> None:
        self._adapters = adapters
        self._engines = engines
        self._find_pinned = pinned
        self._reload = reload

    def load(self, checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
        """Load an adapter ahead of its requests; it stays in memory until ``unload``, if its row still says so.

        Returns:
            None: Its model isn't loaded here, or is loaded again with room for it. ``load_pinned`` follows its load.

        Raises:
            Conflict: Adapters that were loaded ahead have all places.
            Unavailable: Running requests of other adapters have all places, the read is slow, or the model goes.
            BlazrError: As ``ServedAdapters.ensure_known``, and what reading the weights raises.
        """
        engine = self._engine(checkpoint_id)
        if engine is None:
            return None
        try:
            self._adapters.ensure_known(engine.llm, checkpoint_id, adapter_id)
        except NeedsReload as missing:
            self._reload(checkpoint_id, missing.num_bytes)
            return None
        # The row is looked up before and after: a removal or an unload meanwhile found nothing to take away.
        if self._must_stay(checkpoint_id, adapter_id):
            _pin(engine, adapter_id)
            if not self._must_stay(checkpoint_id, adapter_id) and knows(engine.llm, adapter_id):
                _unpin(engine, adapter_id)
        return _find(engine, adapter_id)

    def _must_stay(self, checkpoint_id: str, adapter_id: str) -> bool:
        return adapter_id in self._find_pinned(checkpoint_id)

    def unload(self, checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
        """Let an adapter leave the memory, after the requests that go through it.

        Returns:
            The adapter, if requests go through it now, or if another name of the same files was loaded ahead.

        Raises:
            Unavailable: The engine's step takes too long, or the model goes.
        """
        engine = self._engine(checkpoint_id)
        if engine is None or not knows(engine.llm, adapter_id):
            return None
        _unpin(engine, adapter_id)
        return _find(engine, adapter_id)

    def load_pinned(self, checkpoint_id: str) -> None:
        """Load the adapters that belong to a model that was just loaded, in a thread of its own."""
        threading.Thread(
            target=self._load_pinned, args=(checkpoint_id,), name="load-pinned-adapters", daemon=True
        ).start()

    def forget(self, adapter_id: str) -> None:
        """Take an adapter away from the models that know it; requests that run go on."""
        for engine in self._engines():
            if knows(engine.llm, adapter_id):
                engine.llm.adapters.remove(adapter_id)
                engine.loop.wake()

    def _load_pinned(self, checkpoint_id: str) -> None:
        try:
            left: Iterable[str] = self._find_pinned(checkpoint_id)
            loop, pause_s, level = self._loop(checkpoint_id), RETRY_S, logging.WARNING
            while left := [item for item in left if not self._try_load(loop, checkpoint_id, item, level)]:
                time.sleep(pause_s)
                pause_s, level = min(2 * pause_s, MAX_RETRY_S), logging.DEBUG
        except BlazrError as error:
            logger.error("the adapters of checkpoint %s could not be loaded with it: %s", checkpoint_id, error.message)
        except Exception:
            logger.exception("the adapters of checkpoint %s could not be loaded with it", checkpoint_id)

    def _loop(self, checkpoint_id: str) -> weakref.ref[Any] | None:
        """The loop of a model's engine, which is a new one after each load; a model that goes isn't held in memory."""
        engine = self._engine(checkpoint_id)
        return None if engine is None else weakref.ref(engine.loop)

    def _try_load(self, loop: weakref.ref[Any] | None, checkpoint_id: str, adapter_id: str, level: int) -> bool:
        """Load an adapter with its model; False: another try may help, as running requests have all places now.

        Args:
            level: Of the log's line that it has no place yet.
        """
        if loop is None or self._loop(checkpoint_id) != loop:
            return True  # the model's next load comes with its own adapters
        try:
            self.load(checkpoint_id, adapter_id)
        except Unavailable as error:
            logger.log(level, "the adapter %s is not loaded with its model yet: %s", adapter_id, error.message)
            return False
        except BlazrError as error:
            logger.error("the adapter %s could not be loaded with its model: %s", adapter_id, error.message)
        except Exception:
            logger.exception("the adapter %s could not be loaded with its model", adapter_id)
        return True

    def _engine(self, checkpoint_id: str) -> Engine | None:
        return next((engine for engine in self._engines() if engine.checkpoint_id == checkpoint_id), None)


def _pin(engine: Engine, adapter_id: str) -> None:
    """Let the engine read an adapter, which then stays.

    Raises:
        Unavailable: It isn't in memory within ``PLACE_WAIT_S``, and won't be for this order.
        BlazrError: Why it can't be.
    """
    adapters = engine.llm.adapters
    order = adapters.pin(adapter_id)
    try:
        _wait(engine, order)
    except TimeoutError:
        is_read = adapters.is_being_read(adapter_id)
        if not order.cancel():
            order.result(1)  # it is done at this moment
            return
        engine.loop.wake()
        if is_read:
            message = f"the adapter's files are still being read after {PLACE_WAIT_S:g} s; try again."
        else:
            message = (
                f"the adapter has no place in memory after {PLACE_WAIT_S:g} s: running requests of others have all "
                "places; try again, or raise max_adapters."
            )
        raise Unavailable(message, retry_after_s=5) from None


def _unpin(engine: Engine, adapter_id: str) -> None:
    """Let the engine give an adapter up.

    Raises:
        Unavailable: It hasn't within ``PLACE_WAIT_S``; the order stands.
    """
    try:
        _wait(engine, engine.llm.adapters.unpin(adapter_id))
    except TimeoutError:
        raise Unavailable(
            f"the model's present step takes longer than {PLACE_WAIT_S:g} s; the adapter leaves after it.",
            retry_after_s=5,
        ) from None


def _wait(engine: Engine, order: Future[None]) -> None:
    """Let the engine carry out an order.

    Raises:
        TimeoutError: It hasn't within ``PLACE_WAIT_S``.
        Unavailable: It is closed.
        BlazrError: What the order raises.
    """
    engine.loop.wake()
    try:
        order.result(PLACE_WAIT_S)
    except CancelledError:
        raise Unavailable(
            "the adapter's model is being unloaded; try again once it is loaded.", retry_after_s=5
        ) from None


def _find(engine: Engine, adapter_id: str) -> ResidentAdapter | None:
    return next((item for item in resident_adapters(engine.llm) if item.adapter_id == adapter_id), None)
