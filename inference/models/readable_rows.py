"""Read rows of which some may be damaged: a value that its field can't hold, as an id that is no UUID."""

from __future__ import annotations

import logging
from typing import TypeVar

from django.db.models import Model, QuerySet

logger = logging.getLogger(__name__)

Row = TypeVar("Row", bound=Model)
MAX_NAMED = 20
"""Most damaged rows that the log line names."""


def readable_rows(rows: QuerySet[Row], limit: int | None = None) -> list[Row]:
    """Return up to ``limit`` readable rows; one log line names the damaged rows by primary key.

    SQLite stores any value in any column, and Django fails the whole list for one value that it can't convert.

    Args:
        rows: A queryset without a slice: rows are fetched one by one after a failure.
        limit: Most rows; None: all.
    """
    assert not rows.query.is_sliced
    try:
        return list(rows[:limit])
    except (TypeError, ValueError):
        logger.debug("a row of %s is damaged; reading them one by one", rows.model._meta.db_table)
    found: list[Row] = []
    damaged: list[int] = []
    for key in rows.prefetch_related(None).values_list("pk", flat=True).iterator():
        if len(found) == limit:
            break
        try:
            found.extend(rows.filter(pk=key))
        except (TypeError, ValueError):
            damaged.append(key)
    if damaged:
        logger.warning(
            "%d damaged rows of the table %s are left out: a value doesn't fit its column; delete or repair those "
            "with the primary keys %s",
            len(damaged),
            rows.model._meta.db_table,
            ", ".join(str(key) for key in damaged[:MAX_NAMED]),
        )
    return found
