"""A file that is checked before it becomes a batch: the same errors as the batch's own."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from typing import Any

import orjson
import pytest

from inference.batches import file_check
from inference.batches.file_check import CheckStopped, FileReport, check_file, check_place
from inference.errors import QueueFull
from inference.values.principal import LOCAL, Principal
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work


def checked(lines: list[dict[str, Any] | bytes], principal: Principal = LOCAL) -> FileReport:
    text = b"".join((item if isinstance(item, bytes) else orjson.dumps(item)) + b"\n" for item in lines)
    return check_file(io.BytesIO(text), principal, threading.Event())


@pytest.mark.parametrize(
    "lines",
    [
        [line("a"), b"[1]", line("a"), {**line("b"), "url": "/v1/embeddings"}],
        [b"{"],
        [b"  "],
        [{**line("a"), "custom_id": "x" * 513}],
    ],
)
def test_a_file_is_refused_for_what_its_batch_would_fail(model, manager, lines) -> None:
    report = checked(lines)
    batch = work(make_batch(lines), make_runner(manager))
    errors = json.loads(batch.errors)
    assert [problem.to_dict() for problem, refuses in report.problems if refuses] == errors
    assert report.refusal_counts.total() == len(errors) and not report.failure_counts


def test_lines_that_would_fail_are_those_that_do(model, manager) -> None:
    lines = [line("a"), line("b", temperature=77), line("c", model="nobody"), line("d", stream=True)]
    lines.append({**line("e"), "body": {"prompt": "x"}})
    report = checked(lines)
    assert not report.refusal_counts and report.num_lines == 5
    batch = work(make_batch(lines), make_runner(manager))
    failed = {item["custom_id"]: item["response"]["body"]["error"] for item in contents(batch.error_file_id)}
    assert sorted(failed) == ["b", "c", "d", "e"]
    found = {lines[problem.line - 1]["custom_id"]: problem for problem, _ in report.problems if problem.line}
    assert {name: problem.message for name, problem in found.items()} == {
        name: error["message"] for name, error in failed.items()
    }
    assert report.models == {"tiny": 3, "nobody": 1, "": 1}


def test_what_a_file_asks_for(model) -> None:
    report = checked([line("a", "x" * 40, max_tokens=7), line("b", "x" * 40, max_tokens=3, n=2)])
    assert (report.endpoint, report.prompt_tokens, report.output_tokens) == ("/v1/completions", 20, 13)
    shown = report.to_dict()
    assert (shown["lines"], shown["refused"], shown["failing"], shown["problems"]) == (2, 0, 0, [])
    assert shown["models"] == [{"model": "tiny", "lines": 2}]


def test_all_problems_are_counted_and_the_first_are_kept(model, monkeypatch) -> None:
    monkeypatch.setattr(file_check, "MAX_ERRORS", 3)
    report = checked([*(b"{" for _ in range(5)), line("a", temperature=77)])
    assert (report.refusal_counts.total(), report.failure_counts.total(), len(report.problems)) == (5, 1, 3)
    assert report.to_dict()["counts"][0] == {"code": "invalid_json_line", "count": 5, "refuses": True}


def test_models_and_options_that_a_key_may_not_use(model) -> None:
    key = Principal("key", "key:1", "k", scopes=frozenset({"files", "generate"}), models=frozenset({"tiny"}))
    report = checked([line("a", model="other"), line("b", priority=-5), line("c")], key)
    assert [problem.line for problem, _ in report.problems] == [1, 2]


def test_long_checks_pause(model, monkeypatch) -> None:
    pauses: list[float] = []

    class Unset(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    monkeypatch.setattr(file_check, "WORK_S", 0.0)
    text = b"".join(orjson.dumps(line(name)) + b"\n" for name in "ab")
    check_file(io.BytesIO(text), LOCAL, Unset())
    assert set(pauses) == {file_check.PAUSE_S} and len(pauses) >= 2


def test_a_file_without_a_readable_line_is_not_read_to_its_end(model, monkeypatch) -> None:
    monkeypatch.setattr(file_check, "MAX_LINES", 2)
    monkeypatch.setattr("inference.batches.validation.MAX_LINES", 2)
    report = checked([*(b"{" for _ in range(5)), line("a")])
    assert report.refusal_counts == {"invalid_json_line": 2, "too_many_requests": 1} and report.endpoint == ""


def test_a_check_ends_when_nobody_waits_for_it(model, monkeypatch) -> None:
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(file_check, "WORK_S", 0.0)
    with pytest.raises(CheckStopped):
        check_file(io.BytesIO(orjson.dumps(line("a"))), LOCAL, stopped)
    monkeypatch.setattr(file_check, "TICK_S", 0.01)
    with file_check._check_lock, pytest.raises(CheckStopped):
        check_file(io.BytesIO(b""), LOCAL, stopped)
    assert not file_check._check_lock.locked()


def test_few_checks_wait() -> None:
    with contextlib.ExitStack() as places:
        for _ in range(file_check.MAX_WAITING + 1):
            places.enter_context(check_place())
        with pytest.raises(QueueFull, match="5 files are being checked"), check_place():
            pass
    with check_place():
        pass


def test_long_names_of_models_are_cut(model) -> None:
    names = ["m" * 5000 + str(number) for number in range(3)]
    report = checked([line(name[-1], model=name) for name in names])
    assert report.models == {"m" * 200 + "…": 3}
    assert report.failure_counts == {"model_not_found": 3}
