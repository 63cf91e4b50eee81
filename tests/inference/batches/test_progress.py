"""Progress: share, place in the queue, rates, the estimated finish."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.batches import upkeep
from inference.batches.progress import batch_progress
from inference.batches.services import batch_pause
from inference.jobs import hints
from inference.models import Batch, BatchLine, BatchResult
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import EchoManager, contents, line, make_batch, make_runner, work
from tests.inference.rows import make_checkpoint


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def model(transactional_db):
    return make_checkpoint()


def half_done(lines: int = 20, **values) -> Batch:
    """Ten lines done in the last ten seconds, two tokens each; the rest waits."""
    batch = make_batch((line(str(number)) for number in range(lines)), **values)
    upkeep.batches_turn(owner="keeper")
    now = timezone.now()
    rows = list(BatchLine.objects.filter(batch=batch)[:10])
    BatchResult.objects.bulk_create(
        BatchResult(line=row, batch=batch, is_error=False, payload="{}", completion_tokens=2, finished_at=now)
        for row in rows
    )
    BatchLine.objects.filter(pk__in=[row.pk for row in rows]).update(state="completed")
    Batch.objects.filter(pk=batch.pk).update(num_completed=10, in_progress_at=now - timedelta(seconds=10))
    batch.refresh_from_db()
    return batch


def test_a_paused_batch_has_no_place_and_no_estimate(model):
    first, second = half_done(), half_done()
    assert batch_progress(second)["queue_position"] == 1
    batch_pause(batch_id=first.batch_id, principal=LOCAL)
    first.refresh_from_db()
    found = batch_progress(first)
    assert (found["is_paused"], found["queue_position"], found["estimated_finish_at"]) == (True, None, None)
    found = batch_progress(second)
    assert (found["is_paused"], found["queue_position"]) == (False, 0)


def test_a_batch_that_runs_goes_on_at_its_own_rate(model):
    batch = half_done()
    found = batch_progress(batch)
    assert (found["percent"], found["queue_position"]) == (50.0, 0)
    assert found["lines_per_s"] == pytest.approx(1, abs=0.1)
    assert found["tokens_per_s"] == pytest.approx(2, abs=0.2)
    assert found["estimated_finish_at"] == pytest.approx(timezone.now().timestamp() + 10, abs=3)
    assert found["is_feasible"] is True


def test_a_batch_that_waits_starts_when_those_before_it_are_done(model):
    half_done()
    waiting = make_batch((line(str(number)) for number in range(30)), completion_window="1m")
    assert batch_progress(waiting)["estimated_finish_at"] is None  # not validated: its length isn't known
    upkeep.batches_turn(owner="keeper")
    waiting.refresh_from_db()
    found = batch_progress(waiting)
    assert (found["percent"], found["queue_position"], found["lines_per_s"]) == (0.0, 1, 0.0)
    assert found["estimated_finish_at"] == pytest.approx(timezone.now().timestamp() + 40, abs=6)
    assert found["is_feasible"] is True
    Batch.objects.filter(pk=waiting.pk).update(expires_at=timezone.now() + timedelta(seconds=10))
    waiting.refresh_from_db()
    assert batch_progress(waiting)["is_feasible"] is False


def test_priority_moves_a_batch_ahead(model):
    first, second = make_batch([line("a")]), make_batch([line("a")], priority=-1)
    assert batch_progress(first)["queue_position"] == 1
    assert batch_progress(second)["queue_position"] == 0


def test_nothing_to_judge_by_gives_no_estimate(model):
    batch = make_batch([line("a")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    found = batch_progress(batch)
    assert (found["estimated_finish_at"], found["is_feasible"]) == (None, None)


def test_keys_share_a_worker_and_models_of_others_are_refused_by_line(model):
    row, _ = api_key_create(name="mine", models=["tiny"])
    make_checkpoint("other")
    from inference.access.api_keys import principal_of_tenant

    principal = principal_of_tenant(f"key:{row.pk}")
    long, short = make_batch(line(str(number)) for number in range(30)), None
    manager = EchoManager(str(model.pk), holds=lambda message: True)
    item = make_runner(manager, window=8)
    short = make_batch([line("a"), line("b"), line("x", model="other")], principal)
    upkeep.batches_turn(owner="keeper")
    item.turn()
    running = BatchLine.objects.filter(state="running")
    assert {batch.pk: running.filter(batch=batch).count() for batch in (long, short)} == {long.pk: 6, short.pk: 2}
    manager.holds = lambda message: False
    manager.answer_held()
    short = work(short, item)
    (refused,) = contents(short.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("x", 403)
    assert not LOCAL.sees_everything
