"""One line when a connection is lost, and one when it is back."""

from __future__ import annotations

import logging

from inference.host.outage import Outage

logger = logging.getLogger(__name__)


def test_each_outage_has_two_lines_however_many_attempts_fail(caplog):
    outage = Outage(logger, "the heartbeat")
    outage.succeeded()
    for _ in range(2):
        for _ in range(100):
            outage.failed(ConnectionError("refused"))
        for _ in range(100):
            outage.succeeded()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0] == lines[2] == "the heartbeat: Redis can't be reached (refused); trying again"
    assert lines[1].startswith("the heartbeat: Redis is reached again after 0.0 s")


def test_an_error_without_a_message_is_named(caplog):
    Outage(logger, "orders").failed(TimeoutError())
    assert "(TimeoutError)" in caplog.text


def test_the_server_is_named_and_its_first_line_is_enough(caplog):
    error = ConnectionError("refused\n\tIs the server running?\n")
    Outage(logger, "the job table", server="the database").failed(error)
    assert [record.getMessage() for record in caplog.records] == [
        "the job table: the database can't be reached (refused); trying again"
    ]
