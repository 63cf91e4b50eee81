"""What a session of tests starts ends with it, so that its last lines are its verdict."""

from __future__ import annotations

import gc
import threading

from inference.records.usage import usage_writer
from tests import conftest
from tests.inference.records.test_usage import record


def test_served_requests_start_no_thread_that_outlives_their_test() -> None:
    writer = usage_writer()
    writer.offer(record("late"))
    writer._pending.pop()
    assert "usage" not in {thread.name for thread in threading.enumerate()}


def test_the_interpreters_last_round_leaves_nothing_out() -> None:
    conftest.pytest_unconfigure()
    assert gc.get_freeze_count() == 0
    conftest.pytest_collection_finish()
    assert gc.get_freeze_count() > 0
