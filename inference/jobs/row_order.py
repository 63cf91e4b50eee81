"""Update many rows in the order of their keys, so that transactions can't deadlock."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet


def update_in_order(rows: QuerySet[Any], *, skip_locked: bool = False, **values: Any) -> int:
    """Update rows as ``rows.update`` does, but lock them in the order of their keys; returns their number.

    A plain UPDATE locks rows in the order in which the database finds them. A transaction of SQLite locks the whole
    database at its start.

    Args:
        skip_locked: Leave out rows that another transaction has locked, rather than to wait for them.
    """
    if not connection.features.has_select_for_update:
        return rows.update(**values)
    with transaction.atomic():
        locked = rows.order_by("pk").select_for_update(no_key=True, skip_locked=skip_locked)
        keys = list(locked.values_list("pk", flat=True))
        changed: int = rows.model._default_manager.filter(pk__in=keys).update(**values)
    return changed
