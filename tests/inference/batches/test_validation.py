"""Files that are validated: wrong lines, too many of them, and a validation that is interrupted."""

from __future__ import annotations

import pytest

from inference.batches import upkeep, validation
from inference.models import BatchLine
from tests.inference.batches.fakes import line, make_batch, make_runner, work
from tests.inference.batches.test_runner import embed


def test_a_file_with_too_many_inputs_fails(manager, monkeypatch):
    monkeypatch.setattr("inference.batches.validation.MAX_INPUTS", 10)
    batch = make_batch([embed("a", ["x"] * 6), embed("b", ["x"] * 5)], endpoint="/v1/embeddings")
    batch = work(batch, make_runner(manager))
    assert (batch.state, "too_many_inputs" in batch.errors) == ("failed", True)
    fits = make_batch([embed("a", ["x"] * 6), embed("b", [1, 2, 3, 4, 5])], endpoint="/v1/embeddings")
    assert work(fits, make_runner(manager)).num_completed == 2


DEEP = b'{"custom_id":"d","method":"POST","url":"/v1/completions","body":{"x":' + b"[" * 300 + b"]" * 300 + b"}}"
"""More levels than orjson writes, which a body's row would need."""


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([b"{"], "invalid_json_line", 1),
        ([line("a"), b"[1]"], "invalid_json_line", 2),
        ([line("a"), b"", line("a")], "duplicate_custom_id", 3),
        ([{**line("a"), "url": "/v1/embeddings"}], "mismatched_url", 1),
        ([{**line("a"), "method": "GET"}], "invalid_method", 1),
        ([{**line("a"), "custom_id": None}], "missing_required_parameter", 1),
        ([{**line("a"), "custom_id": 7}], "invalid_custom_id", 1),
        ([{**line("a"), "body": "x"}], "invalid_type", 1),
        ([{**line("a"), "more": 1}], "unknown_parameter", 1),
        ([b"  "], "empty_file", None),
        ([line("a"), DEEP], "invalid_json_line", 2),
        ([line("a"), b"\n" * 50_001], "too_many_blank_lines", 50_002),
    ],
)
def test_a_file_that_cannot_run_fails_with_the_lines_that_are_wrong(manager, lines, code, number):
    batch = work(make_batch(lines), make_runner(manager))
    assert batch.state == "failed"
    import json

    (error,) = json.loads(batch.errors)
    assert (error["code"], error["line"]) == (code, number)
    assert BatchLine.objects.count() == 0
    assert manager.messages == []


def test_too_many_lines_fail_the_batch(manager, monkeypatch):
    monkeypatch.setattr("inference.batches.validation.MAX_LINES", 2)
    batch = work(make_batch([line("a"), line("b"), line("c")]), make_runner(manager))
    assert batch.state == "failed"
    assert "more than 2 requests" in batch.errors


def test_validation_goes_on_where_a_killed_worker_stopped(manager, monkeypatch):
    monkeypatch.setattr(validation, "INSERT_BATCH", 3)
    batch = make_batch(line(str(number)) for number in range(8))
    calls = 0

    def stopping() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3  # in the middle of the second pass

    upkeep.batches_turn(owner="first", stopping=stopping)
    batch.refresh_from_db()
    assert batch.state == "validating"
    assert 0 < BatchLine.objects.count() < 8
    batch = work(batch, make_runner(manager))
    assert batch.num_completed == 8
