"""Start jobs and lines of batches within the limits per minute of their API keys, in a thread of a worker.

Their submission was one request. Each of them is admitted when it starts, by the counters of interactive requests
(``inference.access.limit_store``). What can't start now stays in its queue, and its tenant is left out until there is
room again. A quarter of each limit is left to interactive requests of the key.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import redis

from inference.access.api_keys import principal_of_tenant
from inference.access.limit_store import (
    RENEW_S,
    StoredRelease,
    count_stored,
    release_stored,
    renew_stored,
)
from inference.errors import NotAuthenticated, Unavailable
from inference.host.outage import Outage
from inference.transport.clients import redis_client_sync
from inference.values.limits import UNLIMITED, KeyLimits

logger = logging.getLogger(__name__)
T = TypeVar("T")

LIMITS_CACHE_S = 1.0
"""Seconds for which the limits of a key are kept."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0
"""Seconds until the next look at a tenant over a limit: running work may end before the buckets have filled."""
OUTAGE_PAUSE_S = 5.0
"""Seconds until the next call of Redis after one that failed; the thread renews the leases of its rows meanwhile."""


@dataclass(frozen=True, slots=True)
class _Started:
    tenant: str
    limits: KeyLimits
    tokens: int


class StartLimits:
    """Admits jobs and lines that one thread starts, and releases them at their end. No limits: no call of Redis."""

    def __init__(self) -> None:
        self._started: dict[str, _Started] = {}
        self._released: list[StoredRelease] = []
        self._limits: dict[str, tuple[float, KeyLimits]] = {}
        self._paused: dict[str, float] = {}
        self._away_until = 0.0
        self._renewed_at = time.monotonic()
        self._outage = Outage(logger, "the limits of API keys")

    def paused(self) -> frozenset[str]:
        """Return the tenants of which nothing may start now."""
        now = time.monotonic()
        self._paused = {tenant: until for tenant, until in self._paused.items() if until > now}
        return frozenset(self._paused)

    def capacity(self, tenant: str) -> int | None:
        """Return how many jobs or lines of a tenant may start now, at most; None: no limit."""
        limits = self._limits_of(tenant)
        if not limits.is_metered:
            return None
        if tenant in self.paused():
            return 0
        free = limits.kept_free()
        levels = self._call(
            tenant, lambda client: count_stored(client, tenant=tenant, limits=limits, lease="", tokens=0)
        )
        if levels is None:
            return 0
        if levels.verdict != "ok":
            self._pause(tenant, levels.wait_s)
            return 0
        capacities = [
            math.floor(levels.requests) - (free.requests or 0) if limits.requests is not None else None,
            limits.concurrent - (free.concurrent or 0) - levels.running if limits.concurrent is not None else None,
        ]
        return min((capacity for capacity in capacities if capacity is not None), default=None)

    def admit(self, tenant: str, name: str, *, tokens: int, requests: int = 1) -> bool:
        """Count a job or line that starts now; False: a limit is reached, nothing was counted.

        Args:
            tenant: Its owner.
            name: Its name among all that runs; another one for each attempt.
            tokens: Estimate of prompt and output together. A minute's worth at most is reserved.
            requests: Requests that it counts as; 0 where its submission has counted already.
        """
        limits = self._limits_of(tenant)
        if not limits.is_metered:
            return True
        if limits.tokens is not None:
            tokens = min(tokens, limits.tokens - (limits.kept_free().tokens or 0))
        count = self._call(
            tenant,
            lambda client: count_stored(
                client, tenant=tenant, limits=limits, lease=name, tokens=tokens, requests=requests
            ),
        )
        if count is None:
            # The script may have run although its reply is lost.
            self._released.append(StoredRelease(tenant, limits, name, tokens, was_admitted=False))
            return False
        if count.verdict != "ok":
            self._pause(tenant, count.wait_s)
            return False
        self._started[name] = _Started(tenant, limits, tokens)
        return True

    def release(self, name: str, *, tokens: int) -> None:
        """End a job or line, which used ``tokens``; only the first call counts. Redis is updated by ``flush``."""
        found = self._started.pop(name, None)
        if found is not None:
            self._released.append(StoredRelease(found.tenant, found.limits, name, found.tokens - tokens))
            self._paused.pop(found.tenant, None)

    def flush(self) -> None:
        """Send the releases, and renew the leases of what runs when that is due; called in each turn of the thread.

        Releases are dropped while Redis is away: the leases expire, and the reserved tokens stay charged.
        """
        now = time.monotonic()
        released, self._released = self._released, []
        if released:
            self._call("", lambda client: release_stored(client, released))
        if now - self._renewed_at < RENEW_S:
            return
        self._renewed_at = now
        leases = [(item.tenant, name) for name, item in self._started.items()]
        if leases:
            self._call("", lambda client: renew_stored(client, leases))

    def _limits_of(self, tenant: str) -> KeyLimits:
        """Return the limits of a tenant now; those of a key that is void don't matter, because its work is ended."""
        if not tenant.startswith("key:"):
            return UNLIMITED
        now = time.monotonic()
        read_at, limits = self._limits.get(tenant, (-math.inf, UNLIMITED))
        if now - read_at > LIMITS_CACHE_S:
            self._limits = {name: item for name, item in self._limits.items() if now - item[0] <= LIMITS_CACHE_S}
            try:
                limits = principal_of_tenant(tenant).limits
            except NotAuthenticated:
                limits = UNLIMITED
            self._limits[tenant] = now, limits
        return limits

    def _pause(self, tenant: str, wait_s: float) -> None:
        self._paused[tenant] = time.monotonic() + min(max(wait_s, MIN_PAUSE_S), MAX_PAUSE_S)

    def _call(self, tenant: str, call: Callable[[redis.Redis], T]) -> T | None:
        """Return the reply of Redis; None: it is away, and nothing of the tenant starts for ``OUTAGE_PAUSE_S``."""
        if time.monotonic() < self._away_until:
            return None
        try:
            with redis_client_sync() as client:
                reply = call(client)
        except Unavailable as error:
            self._outage.failed(error)
            self._away_until = time.monotonic() + OUTAGE_PAUSE_S
            self._pause(tenant, OUTAGE_PAUSE_S)
            return None
        self._outage.succeeded()
        return reply
