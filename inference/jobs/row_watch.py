"""RowWatch: whether there are rows of a kind, for threads that ask every second and are nearly always told no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet


class RowWatch:
    """Asks the same question again and again; Django puts its SQL together once.

    Composing a query takes ten times as long as SQLite takes to answer it, with Python's lock held, which the engine's
    thread of a worker waits for.

    Args:
        rows: The rows in question, called once per kind of database. What changes with time has to be said in the
            database's terms (``Now()``): values of Python's stay as they are.
    """

    def __init__(self, rows: Callable[[], QuerySet[Any]]) -> None:
        self._rows = rows
        self._statements: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def exists(self) -> bool:
        """Whether there is one now."""
        connection = connections[DEFAULT_DB_ALIAS]
        statement = self._statements.get(connection.vendor)
        if statement is None:
            query = self._rows().order_by().query.exists()
            statement = self._statements[connection.vendor] = query.get_compiler(connection=connection).as_sql()
        with connection.cursor() as cursor:
            cursor.execute(*statement)
            return cursor.fetchone() is not None
