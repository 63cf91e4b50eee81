"""Read rows of which some may be damaged: a value that its field can't hold, as an id that is no UUID, or cut JSON."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import orjson
from django.db import OperationalError
from django.db.models import Model, QuerySet, TextField

logger = logging.getLogger(__name__)

Row = TypeVar("Row", bound=Model)
MAX_NAMED = 20
"""Most damaged rows that the log line names."""


class DamagedRow(ValueError):
    """A column of JSON has no JSON, JSON of another type than its model names, or lacks members that it names."""


def json_value(row: Model, column: str) -> Any:
    """Return the value of one of the ``JSON_COLUMNS`` of a row; an empty text is an empty value.

    Raises:
        DamagedRow: The text is no JSON, the value has another type, or one of the ``JSON_MEMBERS`` is missing.
    """
    kind: type[Any] = row.JSON_COLUMNS[column]  # type: ignore[attr-defined]
    value = getattr(row, column)
    if isinstance(row._meta.get_field(column), TextField):
        try:
            value = orjson.loads(value) if value else kind()
        except orjson.JSONDecodeError as error:
            raise DamagedRow(f"{column}: {error}") from None
    if not isinstance(value, kind):
        raise DamagedRow(f"{column} has the type {type(value).__name__}")
    for member in getattr(row, "JSON_MEMBERS", {}).get(column, ()):
        if member not in value:
            raise DamagedRow(f"{column} has no {member}")
    return value


def readable_rows(rows: QuerySet[Row], limit: int | None = None) -> list[Row]:
    """Return up to ``limit`` readable rows; one log line names the damaged rows by primary key.

    SQLite stores any value in any column, and Django fails the whole list for one value that it can't convert. What
    a model names in ``JSON_COLUMNS`` (column → type of its value) and ``JSON_MEMBERS`` (column → members that every
    value has) is checked too, where it was read, and so are prefetched and joined rows.

    Args:
        rows: A queryset without a slice: rows are fetched one by one after a failure.
        limit: Most rows; None: all.
    """
    assert not rows.query.is_sliced
    try:
        return [_checked(row) for row in rows[:limit]]
    except (TypeError, ValueError, OperationalError) as error:
        if not _is_damage(error):
            raise
        logger.debug("a row of %s is damaged; reading them one by one", rows.model._meta.db_table)
    found: list[Row] = []
    damaged: list[int] = []
    for key in rows.prefetch_related(None).values_list("pk", flat=True).iterator():
        if len(found) == limit:
            break
        try:
            found.extend(_checked(row) for row in rows.filter(pk=key))
        except (TypeError, ValueError, OperationalError) as error:
            if not _is_damage(error):
                raise
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


def _is_damage(error: Exception) -> bool:
    """Whether a row is to blame. SQLite's JSON functions fail with the class of errors that outages have."""
    return not isinstance(error, OperationalError) or "malformed JSON" in str(error)


def _checked(row: Row, parent: Model | None = None) -> Row:
    """Return the row.

    Args:
        parent: The row that this one was prefetched for, which is checked already.

    Raises:
        DamagedRow: Its JSON, or that of a prefetched or joined row, is damaged.
    """
    _check_columns(row)
    for related in getattr(row, "_prefetched_objects_cache", {}).values():
        for item in related:
            _checked(item, row)
    for joined in row._state.fields_cache.values():
        if isinstance(joined, Model) and joined is not parent:
            _check_columns(joined)
    return row


def _check_columns(row: Model) -> None:
    for column in getattr(row, "JSON_COLUMNS", {}):
        if column in row.__dict__:  # not deferred
            json_value(row, column)
