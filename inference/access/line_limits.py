"""Enforce the limit of batch lines and jobs that an API key may have waiting or running.

The stored rows are counted; there is no separate counter. A submission locks the row of its key, counts, stores and
commits, so that simultaneous submissions of a key, in any process, see each other's rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from django.db import transaction

from inference.errors import RateLimitExceeded, RequestTooLarge
from inference.models import ApiKey
from inference.records import metrics
from inference.values.principal import Principal

RETRY_S = 60


@contextlib.contextmanager
def lines_reserved(*, principal: Principal, lines: int, count: Callable[[], int]) -> Iterator[None]:
    """Enforce the limit of ``principal`` while the block stores ``lines`` more, in one transaction with the block.

    Args:
        principal: The caller.
        lines: Lines or jobs of the submission.
        count: Returns the tenant's rows that wait or run.

    Raises:
        RateLimitExceeded: The rows would be more than the limit.
        RequestTooLarge: The submission alone is more than the limit.
    """
    if principal.limits.lines is None:
        yield
        return
    with transaction.atomic():
        # SQLite has no row locks; its transactions lock the database from their start (settings.database).
        ApiKey.objects.select_for_update().filter(pk__in=[principal.key_id]).values_list("pk").first()
        lines_check(principal=principal, lines=lines, count=count)
        yield


def lines_check(*, principal: Principal, lines: int, count: Callable[[], int]) -> None:
    """Enforce the limit as of now, without a lock: early, before work for a submission that stores ``lines`` more.

    Raises:
        RateLimitExceeded, RequestTooLarge: As ``lines_reserved`` raises.
    """
    limit = principal.limits.lines
    if limit is None:
        return
    if lines > limit:
        raise RequestTooLarge(
            f"The submission has {lines:,} lines, this API key may have {limit:,} queued; submit fewer at a time."
        )
    queued = count()
    if queued + lines > limit:
        metrics.RATE_LIMITED.labels(principal.kind, "lines").inc()
        raise RateLimitExceeded(
            f"{queued:,} lines of this API key are queued or running and {lines:,} more would be over its "
            f"limit of {limit:,}; submit them later.",
            retry_after_s=RETRY_S,
        )
