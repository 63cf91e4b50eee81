"""Look up cheaply whether any rows of a kind exist, for threads that check every second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet


class RowWatch:
    """Runs the same EXISTS query again and again, compiled once by Django.

    Compiling the query takes ten times as long as running it on SQLite, and holds Python's lock, for which the
    worker's engine threads wait.

    Args:
        rows: Returns the rows; called once per kind of database. Times have to be the database's (``Now()``), because
            Python values stay as they were at the first call.
    """

    def __init__(self, rows: Callable[[], QuerySet[Any]]) -> None:
        self._rows = rows
        self._statements: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def exists(self) -> bool:
        connection = connections[DEFAULT_DB_ALIAS]
        statement = self._statements.get(connection.vendor)
        if statement is None:
            query = self._rows().order_by().query.exists()
            statement = self._statements[connection.vendor] = query.get_compiler(connection=connection).as_sql()
        with connection.cursor() as cursor:
            cursor.execute(*statement)
            return cursor.fetchone() is not None
