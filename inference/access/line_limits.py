"""Enforce the limit of batch lines and jobs that an API key may have waiting or running.

The rows are the truth, but two submissions at once don't see each other's rows. So a submission first reserves its
lines in Redis, then counts the rows: lines that were stored before are in the rows, lines that are being stored are in
the reservations. For a moment, stored lines count twice, which errs on the safe side. The reservation of a killed
process expires after ``RESERVATION_S``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from inference.errors import RateLimitExceeded, RequestTooLarge, Unavailable
from inference.records import metrics
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync
from inference.values.principal import Principal

RESERVATION_S = 300.0
RETRY_S = 60

_RESERVE = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local sum = 0
for _, reservation in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  sum = sum + tonumber(string.match(reservation, ':(%d+)$'))
end
return sum
"""


@contextlib.contextmanager
def lines_reserved(*, principal: Principal, lines: int, count: Callable[[], int]) -> Iterator[None]:
    """Enforce the limit of ``principal`` while the block stores ``lines`` more and commits; synchronous code only.

    Args:
        principal: The caller.
        lines: Lines or jobs of the submission.
        count: Returns the tenant's rows that wait or run; called at once.

    Raises:
        RateLimitExceeded: The rows would be more than the limit.
        RequestTooLarge: The submission alone is more than the limit.
        Unavailable: Redis can't be reached.
    """
    limit = principal.limits.lines
    if limit is None:
        yield
        return
    if lines > limit:
        raise RequestTooLarge(
            f"The submission has {lines:,} lines, this API key may have {limit:,} queued; submit fewer at a time."
        )
    key, reservation, now = redis_keys.limit_lines(principal.tenant), f"{uuid4().hex}:{lines}", time.time()
    with redis_client_sync() as client:
        reserved: Any = client.eval(
            _RESERVE, 1, key, str(now), str(now + RESERVATION_S), reservation, str(int(RESERVATION_S))
        )
    try:
        queued = count()
        if queued + int(reserved) > limit:
            metrics.RATE_LIMITED.labels(principal.kind, "lines").inc()
            raise RateLimitExceeded(
                f"{queued:,} lines of this API key are queued or running and {lines:,} more would be over its "
                f"limit of {limit:,}; submit them later.",
                retry_after_s=RETRY_S,
            )
        yield
    finally:
        # The rows are stored by now; a reservation that stays expires.
        with contextlib.suppress(Unavailable), redis_client_sync() as client:
            client.zrem(key, reservation)
