"""Write the worker's heartbeat to Redis, and check those of other workers and of its web processes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.held_messages import DEAD_AFTER_S, release_dead_workers
from inference.transport.open_requests import expire_messages
from inference.transport.redis_time import redis_now_sync
from inference.values.states import WorkerState

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
WEB_CHECK_INTERVAL_S = 5.0
PEER_CHECK_INTERVAL_S = 2.0
MIN_GAP_S = 0.1
SPARE_EVERY_S = 3 * DEAD_AFTER_S
"""Fewest seconds between two times that a late heartbeat gives the others."""


class Heartbeat:
    """Write the worker's state every second, and at once after ``wake``.

    Args:
        describe: Returns the state to write.
        web_ids: Returns the web processes that have requests here.
        on_web_lost: Called with a web process whose heartbeat was missing twice in a row.
        tick: Called once per beat, before ``describe``; it does the manager's periodic work.
        on_fenced: Called when other workers have declared this one dead and have taken its messages.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker_id: str,
        *,
        describe: Callable[[], WorkerState],
        web_ids: Callable[[], Iterable[str]],
        on_web_lost: Callable[[str], None],
        tick: Callable[[], None],
        on_fenced: Callable[[], object],
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._describe = describe
        self._web_ids = web_ids
        self._on_web_lost = on_web_lost
        self._tick = tick
        self._on_fenced = on_fenced
        self._missing: set[str] = set()
        self._check_webs_at = self._check_peers_at = self._turn_at = 0.0
        self._spared_at = -SPARE_EVERY_S
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def wake(self) -> None:
        """Write the state now, because it has changed."""
        self._changed.set()

    def stop(self) -> None:
        """End the thread and remove the heartbeat, so that no request waits for this worker."""
        self._stopping = True
        self._changed.set()
        if self._thread.ident is not None:  # a worker that is stopped while it starts has none yet
            self._thread.join(5)
        try:
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.delete(redis_keys.worker(self._worker_id))
            pipe.zrem(redis_keys.WORKERS, self._worker_id)
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("the heartbeat could not be removed (%s); it expires by itself", error)

    def _run(self) -> None:
        outage = Outage(logger, "the heartbeat of this worker")
        self._turn_at = time.monotonic()
        while not self._stopping:
            self._changed.clear()
            try:
                if self._client.exists(redis_keys.fenced(self._worker_id)):
                    self._on_fenced()
                    return
                self._tick()
                self._beat()
                self._spare_others_if_late()
                if time.monotonic() >= self._check_peers_at:
                    self._check_peers_at = time.monotonic() + PEER_CHECK_INTERVAL_S
                    release_dead_workers(self._client)
                    expire_messages(self._client, redis_now_sync(self._client))
                if time.monotonic() >= self._check_webs_at:
                    self._check_webs_at = time.monotonic() + WEB_CHECK_INTERVAL_S
                    self._check_web_processes()
                outage.succeeded()
            except (RedisError, OSError) as error:
                outage.failed(error)
            except Exception:
                logger.exception("the heartbeat failed")
            # The progress of a load wakes this thread often; limit the rate to ten heartbeats a second.
            time.sleep(MIN_GAP_S)
            self._changed.wait(INTERVAL_S - MIN_GAP_S)

    def _spare_others_if_late(self) -> None:
        """Postpone the checks of other processes after a late heartbeat of this one.

        While Redis was away or the machine stood still, no process could send a heartbeat. At most once in
        ``SPARE_EVERY_S``, so that a worker whose turns are often slow finds dead ones too.
        """
        now = time.monotonic()
        is_late = now - self._turn_at > DEAD_AFTER_S / 2
        self._turn_at = now
        if is_late and now >= self._spared_at + SPARE_EVERY_S:
            self._spared_at = now
            self._check_peers_at = self._check_webs_at = now + DEAD_AFTER_S
            self._missing.clear()

    def _beat(self) -> None:
        state = self._describe()
        now = redis_now_sync(self._client)
        pipe: Any = self._client.pipeline(transaction=True)
        pipe.set(redis_keys.worker(self._worker_id), state.to_json(), ex=redis_keys.HEARTBEAT_EXPIRE_S)
        pipe.zadd(redis_keys.WORKERS, {self._worker_id: now})
        for model in state.models:
            # XX: only ``Presence`` adds and removes holders; otherwise a heartbeat could undo an unload.
            pipe.zadd(
                redis_keys.holders(model.checkpoint_id), {self._worker_id: now + redis_keys.HOLDER_EXPIRE_S}, xx=True
            )
        pipe.execute()

    def _check_web_processes(self) -> None:
        names = sorted(set(self._web_ids()))
        pipe: Any = self._client.pipeline(transaction=False)
        for name in names:
            pipe.exists(redis_keys.web(name))
        alive = pipe.execute() if names else []
        missing = {name for name, exists in zip(names, alive, strict=True) if not exists}
        for name in missing & self._missing:
            logger.warning("web process %s has no heartbeat, its requests are cancelled", name)
            self._on_web_lost(name)
        self._missing = missing - self._missing
