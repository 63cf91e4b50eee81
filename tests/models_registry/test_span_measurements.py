"""Measurements end with a result in their row, or with a reason; a script stands in for the child."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull
from models_registry import checkpoint_jobs, services
from models_registry.checkpoint_jobs import KEEP_ROWS
from models_registry.default_text import DEFAULT_TEXT
from models_registry.models import Checkpoint, SpanMeasurement
from models_registry.span_measurements import (
    MAX_KEPT,
    MAX_TEXT_BYTES,
    SPAN_MEASUREMENTS,
    span_measurement_create,
    span_measurement_delete,
)
from tests.live.conftest import wait_until
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Install = Callable[[str], Path]

RESULT = {"figures": {"tokens": 7, "mixers": []}, "table": [{"layer": "0", "kind": "mamba2"}], "picture": "<svg/>"}
ANSWER = f"send(result={RESULT!r})\n"


@pytest.fixture
def source() -> Checkpoint:
    return services.checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny")


def started(source: Checkpoint, **members: object) -> SpanMeasurement:
    return span_measurement_create(checkpoint=source, **({"text": "some words", "wait": True} | members))


def row_of(source: Checkpoint, **values: object) -> SpanMeasurement:
    defaults = {"source_name": "tiny", "max_tokens": 2, "max_seconds": 1, "active_at": timezone.now()}
    return SpanMeasurement.objects.create(source=source, **(defaults | values))


def test_the_result_is_in_the_row(source: Checkpoint, staff: User, child_script: Install, storage_dirs: Path) -> None:
    directory = child_script("(directory / 'request').write_text(json.dumps(request))\n" + ANSWER)
    services.checkpoint_override_set(checkpoint=source, fact="max_position_embeddings", value=64)
    row = started(source, owner=staff, max_tokens=50, max_seconds=60)
    assert (row.state, row.reason, row.progress, row.stage, row.owner) == ("done", "", 1.0, "", staff)
    assert (row.num_tokens, json.loads(row.figures), row.table) == (7, RESULT["figures"], RESULT["table"])
    assert (row.picture, str(row)) == ("<svg/>", "memory of tiny (done)")
    assert json.loads((directory / "request").read_text()) == {
        "path": source.path, "overrides": {"max_position_embeddings": 64}, "model": "tiny", "text": "some words",
        "max_tokens": 50, "device": "auto",
    }  # fmt: skip
    assert left_behind(storage_dirs) == []


def test_a_text_is_there_where_none_is_given(source: Checkpoint, child_script: Install) -> None:
    child_script(ANSWER)
    assert started(source, text=None).text == DEFAULT_TEXT
    assert 1024 < len(DEFAULT_TEXT.encode()) <= MAX_TEXT_BYTES


def test_without_a_tokenizer_random_tokens_are_read(hybrid: Path, child_script: Install) -> None:
    child_script("assert request['text'] == ''\n" + ANSWER)
    bare = services.checkpoint_register(path=hybrid, served_model_name="bare")
    assert started(bare, text=None).state == "done"
    with pytest.raises(InvalidRequest, match="bare has no known tokenizer and reads random tokens; leave text out"):
        started(bare)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"text": ""}, "text is empty"), ({"text": " \n\t"}, "text is empty"),
        ({"text": "ä" * (MAX_TEXT_BYTES // 2) + "b"}, f"text has {MAX_TEXT_BYTES + 1} bytes in UTF-8; at most 32768"),
        ({"text": "a\ud800"}, "half of a surrogate pair"), ({"text": "a\0b"}, "null character"),
        ({"max_tokens": 1}, "max_tokens is 1; it must be 2 to 4096"), ({"max_tokens": 4097}, "max_tokens is 4097"),
        ({"max_seconds": 0}, "max_seconds is 0; it must be 1 to 3600"), ({"max_seconds": 3601}, "max_seconds is 3601"),
    ],
)  # fmt: skip
def test_bad_values_start_nothing(source: Checkpoint, members: dict, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        started(source, **members)
    assert not SpanMeasurement.objects.exists()


def test_the_longest_text_is_taken(source: Checkpoint, child_script: Install) -> None:
    child_script(ANSWER)
    assert started(source, text="ä" * (MAX_TEXT_BYTES // 2)).state == "done"


def test_missing_files_are_refused(source: Checkpoint) -> None:
    source.state, source.state_reason = "missing", "it is gone."
    with pytest.raises(Conflict, match="tiny is missing: it is gone"):
        started(source)


def test_one_runs_at_a_time(source: Checkpoint, child_script: Install) -> None:
    child_script(ANSWER)
    row = row_of(source, progress=0.4)
    with pytest.raises(QueueFull, match=r"another measurement is running \(tiny, 40% done\)"):
        started(source)
    SPAN_MEASUREMENTS.cancel(row.pk)
    assert started(source).state == "done"


def test_as_many_are_kept_as_are_said(source: Checkpoint, child_script: Install) -> None:
    child_script(ANSWER)
    rows = [row_of(source, state="done") for _ in range(MAX_KEPT)]
    with pytest.raises(Conflict, match=f"tiny has {MAX_KEPT} measurements, the most that are kept; delete one"):
        started(source)
    span_measurement_delete(rows[0].pk)
    assert started(source).state == "done"


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("send(error={'class': 'InvalidRequest', 'message': 'the text has 1 tokens.'})", "the text has 1 tokens."),
        ("sys.exit(1)", "exit status 1"), ("os.kill(os.getpid(), 9)", "want of memory"), ("", "without a result"),
        ("send(result={})", "the server failed while it measured; its log has details"),
    ],
)  # fmt: skip
def test_failures_leave_a_reason(script: str, reason: str, source: Checkpoint, child_script: Install) -> None:
    child_script(script)
    row = started(source)
    assert (row.state, row.figures, row.picture) == ("failed", "", "")
    assert reason in row.reason


def test_a_child_is_ended_when_its_time_is_over(source: Checkpoint, child_script: Install, monkeypatch) -> None:
    directory = child_script("(directory / 'pid').write_text(str(os.getpid()) + '.')\ntime.sleep(60)")

    def has_begun() -> bool:
        return (directory / "pid").exists() and (directory / "pid").read_text().endswith(".")

    # Its time passes when the child has begun, however long a busy machine takes for that.
    monkeypatch.setattr(checkpoint_jobs, "time", SimpleNamespace(monotonic=lambda: 2.0 * has_begun()))
    began = time.monotonic()
    row = started(source, max_seconds=1)
    assert (row.state, row.reason) == (
        "failed",
        "it took longer than 1 s and was ended; allow more time, or ask for less.",
    )
    assert time.monotonic() - began < 50
    assert not Path(f"/proc/{(directory / 'pid').read_text()[:-1]}").exists()


@pytest.mark.django_db(transaction=True)
def test_a_cancel_ends_the_child(source: Checkpoint, child_script: Install, storage_dirs: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint_jobs, "TICK_S", 0.02)
    directory = child_script(
        "(directory / 'pid').write_text(str(os.getpid()))\nsend(progress=0.5, stage='layer 3')\ntime.sleep(60)\n"
    )
    row = started(source, wait=False)
    wait_until(lambda: SPAN_MEASUREMENTS.get(row.pk).progress, 60, "the progress")
    with pytest.raises(Conflict, match="is running; cancel it first"):
        span_measurement_delete(row.pk)
    cancelled = SPAN_MEASUREMENTS.cancel(row.pk, "vera")
    assert (cancelled.state, cancelled.reason, cancelled.stage) == ("cancelled", "cancelled by vera", "")
    pid = int((directory / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60, "the child's end")
    name = f"measurement-{row.pk}"
    wait_until(lambda: not any(thread.name == name for thread in threading.enumerate()), 60, "the end")
    assert left_behind(storage_dirs) == []
    span_measurement_delete(row.pk)
    with pytest.raises(NotFound):
        span_measurement_delete(row.pk)


# --- over time -----------------------------------------------------------------------------------


def test_a_row_whose_process_died_fails_and_makes_way(source: Checkpoint, child_script: Install) -> None:
    child_script(ANSWER)
    row = row_of(source, active_at=timezone.now() - checkpoint_jobs.START_LIMIT - timedelta(seconds=1))
    assert started(source).state == "done"
    ended = SPAN_MEASUREMENTS.get(row.pk)
    assert (ended.state, ended.reason) == ("failed", "the server stopped while it measured; start it again")


def test_results_stay_and_failures_go_after_a_week(source: Checkpoint) -> None:
    old = timezone.now() - KEEP_ROWS - timedelta(seconds=1)
    kept = row_of(source, state="done", active_at=old)
    row_of(source, state="failed", active_at=old)
    row_of(source, state="cancelled", active_at=old)
    fresh = row_of(source, state="failed")
    assert SPAN_MEASUREMENTS.sweep() == 0
    assert {row.pk for row in SpanMeasurement.objects.all()} == {kept.pk, fresh.pk}


def test_results_of_a_deleted_model_go_with_the_next_sweep(source: Checkpoint) -> None:
    row_of(source, state="done")
    row_of(source)
    services.checkpoint_delete(checkpoint=source)
    SPAN_MEASUREMENTS.sweep()
    assert SpanMeasurement.objects.get().state == "running"
