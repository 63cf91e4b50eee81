"""What tests of row locks on PostgreSQL share: functions in threads of their own, and a look at who waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.db.models import Model

from inference.jobs.claims import LEASE_S, seconds_from_now

on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="a transaction of SQLite locks the whole database"
)


def in_thread(work):
    """Run a function and close the connection that it has opened in this thread."""
    try:
        return work()
    finally:
        connection.close()


def wait_for_a_lock(waiting: Future) -> None:
    """Wait until a function of another thread has ended or waits for a row's lock."""
    until = time.monotonic() + 60
    while not waiting.done() and not waits_for_a_lock():
        assert time.monotonic() < until
        time.sleep(0.01)


def waits_for_a_lock() -> bool:
    """Whether another connection to this database waits for a row's lock."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_clear_snapshot()")  # a transaction would see what it has seen first
        cursor.execute(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def assert_in_order(change: Callable[[], object], first: Model, second: Model) -> None:
    """Assert that an update of two rows locks the first one before the second one.

    A plain UPDATE locks them as they lie in the table: a row that was written again lies behind the others.
    """
    rows = type(first)._default_manager
    rows.filter(pk=first.pk).update(lease_until=seconds_from_now(LEASE_S))
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            rows.select_for_update().get(pk=first.pk)
            changing = threads.submit(in_thread, change)
            wait_for_a_lock(changing)
            assert not changing.done(), "it doesn't wait for the first one"
            assert rows.select_for_update(nowait=True).get(pk=second.pk)
        changing.result(60)


def without_waiting(change: Callable[[], object], locked: Model) -> object:
    """Return what a function returns while another transaction has a row; it must not wait for the row."""
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            type(locked)._default_manager.select_for_update().get(pk=locked.pk)
            changing = threads.submit(in_thread, change)
            wait_for_a_lock(changing)
            is_done = changing.done()
        found = changing.result(60)
    assert is_done, "it waited for the row"
    return found
