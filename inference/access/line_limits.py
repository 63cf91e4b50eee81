"""The limit of lines that wait or run: for whoever stores batches or jobs.

The rows are the truth, but two submissions at once each see too few of them. So a submission first notes its own
lines in Redis and counts the rows then: whatever was stored before is in the rows, whatever is being stored is in the
notes. Lines that are stored but still noted count twice for a moment, which errs on the safe side. A process that is
killed in between leaves its note for ``NOTE_S``.
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

NOTE_S = 300.0
RETRY_S = 60

_NOTE = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local sum = 0
for _, note in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  sum = sum + tonumber(string.match(note, ':(%d+)$'))
end
return sum
"""


@contextlib.contextmanager
def lines_reserved(*, principal: Principal, lines: int, count: Callable[[], int]) -> Iterator[None]:
    """Hold ``principal`` to its limit of lines while the block stores ``lines`` more and commits.

    Args:
        principal: Who submits.
        lines: How many.
        count: The tenant's rows that wait or run; called at once. Synchronous code only.

    Raises:
        RateLimitExceeded: It would be more than the limit.
        RequestTooLarge: The submission alone is.
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
    key, note, now = redis_keys.limit_lines(principal.tenant), f"{uuid4().hex}:{lines}", time.time()
    with redis_client_sync() as client:
        noted: Any = client.eval(_NOTE, 1, key, str(now), str(now + NOTE_S), note, str(int(NOTE_S)))
    try:
        queued = count()
        if queued + int(noted) > limit:
            metrics.RATE_LIMITED.labels(principal.kind, "lines").inc()
            raise RateLimitExceeded(
                f"{queued:,} lines of this API key are queued or running and {lines:,} more would be over its "
                f"limit of {limit:,}; submit them later.",
                retry_after_s=RETRY_S,
            )
        yield
    finally:
        # The rows are stored by now: a note that stays is forgotten after a while.
        with contextlib.suppress(Unavailable), redis_client_sync() as client:
            client.zrem(key, note)
