"""What all jobs on checkpoints share: following a child, its time, its errors, and the words of its row."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.errors import EngineError, InvalidRequest, NotFound
from models_registry import checkpoint_jobs
from models_registry.checkpoint_jobs import Cancelled, Report, follow, source_of
from models_registry.job_process import JobProcess
from models_registry.models import Quantisation, SpanMeasurement
from models_registry.quantisations import QUANTISATIONS
from models_registry.span_measurements import SPAN_MEASUREMENTS
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Install = Callable[[str], Path]


def followed(**limits: float) -> tuple[dict, list[tuple[float | None, str | None]]]:
    """The result of the installed child, and what it reported."""
    told: list[tuple[float | None, str | None]] = []
    with JobProcess("blazr_site.span_child", {}) as child:
        return follow(child, lambda share=None, stage=None: told.append((share, stage)), **limits), told


def test_progress_is_a_share_of_the_job(child_script: Install) -> None:
    child_script("send(progress=0.5, stage='half')\nsend(result={'a': 1})")
    result, told = followed(share=0.8)
    assert result == {"a": 1}
    assert (0.4, "half") in told


def test_a_childs_error_is_the_jobs(child_script: Install) -> None:
    child_script("send(error={'class': 'InvalidRequest', 'message': 'give more.'})")
    with pytest.raises(InvalidRequest, match=r"give more\."):
        followed()


def test_an_end_without_a_result_is_our_error(child_script: Install) -> None:
    child_script("send(progress=1.0, stage='done')")
    with pytest.raises(EngineError, match="without a result"):
        followed()


@pytest.mark.parametrize("script", ["time.sleep(60)", "while True: send(progress=0.5, stage='x'); time.sleep(0.01)"])
def test_time_is_over_for_a_child_that_is_silent_or_talks(script: str, child_script: Install) -> None:
    child_script(script)
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"it took longer than 0\.3 s and was ended"):
        followed(max_seconds=0.3)
    assert time.monotonic() - began < 40


def test_a_result_in_time_counts(child_script: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over between the child's result and its end."""
    child_script("send(result={'a': 1})\ntime.sleep(0.6)")
    now, messages = 0.0, JobProcess.messages

    def passing(self: JobProcess, seconds: float) -> Iterator[dict]:
        nonlocal now
        for message in messages(self, seconds):
            yield message
            now += 10.0 * ("result" in message)

    monkeypatch.setattr(JobProcess, "messages", passing)
    monkeypatch.setattr(checkpoint_jobs, "time", SimpleNamespace(monotonic=lambda: now))
    assert followed(max_seconds=0.1)[0] == {"a": 1}
    assert now == 10.0


@pytest.mark.parametrize("jobs", [QUANTISATIONS, SPAN_MEASUREMENTS], ids=lambda jobs: jobs.noun)
def test_one_of_a_kind_runs(jobs) -> None:
    values = {"served_model_name": "b"} if jobs is QUANTISATIONS else {"max_tokens": 2, "max_seconds": 1}
    row = jobs.rows().create(source_name="a", active_at=timezone.now(), **values)
    with pytest.raises(IntegrityError), transaction.atomic():
        jobs.rows().create(source_name="a", active_at=timezone.now(), **values)
    assert jobs.cancel(row.pk).reason == "cancelled"
    jobs.rows().create(source_name="a", active_at=timezone.now(), **values)


def test_kinds_do_not_wait_for_each_other() -> None:
    Quantisation.objects.create(source_name="a", served_model_name="b", active_at=timezone.now())
    SpanMeasurement.objects.create(source_name="a", max_tokens=2, max_seconds=1, active_at=timezone.now())


def test_a_row_that_ended_stops_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_jobs, "TICK_S", 0.0)
    row = SpanMeasurement.objects.create(source_name="a", max_tokens=2, max_seconds=1, active_at=timezone.now())
    report = Report(SPAN_MEASUREMENTS, row)
    report(0.25, "x" * 300)
    row.refresh_from_db()
    assert (row.progress, len(row.stage)) == (0.25, 200)
    SPAN_MEASUREMENTS.cancel(row.pk, "vera")
    with pytest.raises(Cancelled):
        report(0.5)
    with pytest.raises(Cancelled):
        SPAN_MEASUREMENTS.finish(row, num_tokens=5)


def test_a_job_that_was_cancelled_before_its_start_does_nothing(storage_dirs: Path, child_script: Install) -> None:
    directory = child_script("(directory / 'began').touch()")
    row = SpanMeasurement.objects.create(source_name="a", max_tokens=2, max_seconds=1, active_at=timezone.now())
    SPAN_MEASUREMENTS.cancel(row.pk)
    for job_id in (row.pk, uuid.uuid4()):
        SPAN_MEASUREMENTS.run(job_id)
    assert SPAN_MEASUREMENTS.get(row.pk).state == "cancelled"
    assert not (directory / "began").exists()
    assert left_behind(storage_dirs) == []


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(NotFound, match="there is no measurement"):
        SPAN_MEASUREMENTS.get(uuid.uuid4())
    with pytest.raises(NotFound, match="tiny was deleted"):
        source_of(SimpleNamespace(source=None, source_name="tiny"))
