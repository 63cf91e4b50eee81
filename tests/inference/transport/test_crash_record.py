"""The rule by which a request runs alone, or no more, after crashes of workers that ran it."""

from __future__ import annotations

import pytest

from inference.transport.crash_record import ALONE_AFTER, MARGIN_TOKENS, MAX_CRASHES, CrashRecord, tokens_alone


def crashed(record: CrashRecord, *, made: int) -> CrashRecord:
    """The record after an attempt that made so many tokens and ended in a crash that counts."""
    counted = CrashRecord(record.crashes + 1, record.seen, record.reach, record.delivered)
    return counted.resumed(record.delivered + made)


@pytest.mark.parametrize("made", [0, 1, 40, 5000], ids=lambda made: f"after {made} tokens")
def test_a_request_that_kills_after_a_number_of_tokens_kills_three_workers(made):
    record = CrashRecord()
    alone = []
    for _ in range(MAX_CRASHES):
        assert not record.has_failed
        alone.append(record.alone_tokens)
        record = crashed(record, made=made)
    assert record.has_failed
    assert alone == [None] * ALONE_AFTER + [tokens_alone(made)]
    assert tokens_alone(made) > made  # it still ran alone when it killed the third


def test_a_request_that_kills_at_a_position_kills_three_workers():
    record, alone = CrashRecord(), 0
    for made in (500, 3, 0):  # the last tokens before a crash may not have reached the client
        alone += record.alone_tokens is not None
        record = crashed(record, made=made)
    assert record.has_failed
    assert alone == 1


def test_a_request_that_gets_on_between_crashes_never_fails():
    record = CrashRecord()
    for attempt in range(10):
        record = crashed(record, made=(attempt + 1) * (MARGIN_TOKENS + 1))
        assert (record.crashes, record.alone_tokens) == (1, None)


def test_a_delivery_without_a_crash_counts_nothing_and_may_clear():
    record = crashed(crashed(CrashRecord(), made=0), made=0)
    assert record.alone_tokens == tokens_alone(0)
    drained = record.resumed(record.delivered + 5)
    assert (drained.crashes, drained.reach) == (2, 0)
    assert drained.resumed(drained.delivered + MARGIN_TOKENS + 1).crashes == 0
