"""Failed lines that run again as a batch of their own."""

from __future__ import annotations

import orjson
import pytest

from inference.batches import retries, services
from inference.batches.line_requests import MAX_METADATA
from inference.batches.retries import RETRY_OF, failed_lines_retry, retries_of
from inference.batches.services import batch_cancel
from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull
from inference.files.store import open_file
from inference.models import Batch, BatchLine, BatchResult, StoredFile
from inference.values.principal import LOCAL, Principal
from tests.inference.batches.fakes import line, make_batch, make_runner, work

TOKEN = "0123456789abcdef"
LINES = [line("good"), line("bad", temperature=77), line("later", model="later")]


def custom_ids(batch: Batch) -> list[str]:
    with open_file(batch.input_sha256) as file:
        return [orjson.loads(text)["custom_id"] for text in file]


@pytest.fixture
def ended(manager) -> Batch:
    return work(make_batch(LINES, metadata={"label": "x"}, completion_window="3d", priority=5), make_runner(manager))


@pytest.mark.parametrize("num_swept", [0, 2, 3])
def test_only_the_failed_lines_run_again(ended: Batch, manager, num_swept: int) -> None:
    BatchLine.objects.filter(batch=ended, number__lte=num_swept).delete()
    new = failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token=TOKEN)
    assert custom_ids(new) == ["bad", "later"]
    assert orjson.loads(new.metadata) == {"label": "x", RETRY_OF: ended.batch_id}
    assert (new.endpoint, new.completion_window, new.priority, new.num_lines) == ("/v1/completions", "3d", 5, 2)
    assert retries_of(ended, principal=LOCAL) == [new] and retries_of(new, principal=LOCAL) == []
    assert work(new, make_runner(manager)).num_failed == 2
    again = failed_lines_retry(batch_id=new.batch_id, principal=LOCAL, token=TOKEN)
    assert orjson.loads(again.metadata)[RETRY_OF] == new.batch_id


def test_rows_that_go_while_they_are_read_lose_no_line(ended: Batch, monkeypatch) -> None:
    monkeypatch.setattr(retries, "BODY_ROWS", 1)
    lines = retries._failed_lines(ended)
    assert next(lines)["custom_id"] == "bad"
    BatchLine.objects.filter(batch=ended).delete()
    with pytest.raises(Conflict, match="try again"):
        list(lines)


def test_lines_that_never_ran_are_among_them(manager) -> None:
    batch = make_batch([line("a"), line("b")])
    runner = make_runner(manager)
    manager.holds = lambda message: True
    work(batch, runner)
    batch_cancel(batch_id=batch.batch_id, principal=LOCAL)
    ended = work(batch, runner)
    assert (ended.state, ended.num_failed) == ("cancelled", 2)
    assert custom_ids(failed_lines_retry(batch_id=batch.batch_id, principal=LOCAL, token=TOKEN)) == ["a", "b"]


def test_what_cannot_be_retried_says_why_and_leaves_no_file(ended: Batch, manager, monkeypatch) -> None:
    runs = make_batch([line("a")])
    with pytest.raises(Conflict, match="when it has ended"):
        failed_lines_retry(batch_id=runs.batch_id, principal=LOCAL, token=TOKEN)
    with pytest.raises(Conflict, match="No line of this batch failed"):
        failed_lines_retry(batch_id=work(runs, make_runner(manager)).batch_id, principal=LOCAL, token=TOKEN)
    stranger = Principal("user", "user:9", "eve", scopes=frozenset({"files"}))
    with pytest.raises(NotFound):
        failed_lines_retry(batch_id=ended.batch_id, principal=stranger, token=TOKEN)
    before = StoredFile.objects.count()
    make_batch([line("open")])
    monkeypatch.setattr(services, "MAX_OPEN", 1)
    with pytest.raises(QueueFull):
        failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token=TOKEN)
    for token in ("", "0" * 15, "G" * 16, TOKEN + "\n"):
        with pytest.raises(InvalidRequest, match="16 hexadecimal digits"):
            failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token=token)
    assert StoredFile.objects.count() == before + 1  # the open batch's own
    BatchResult.objects.filter(batch=ended).delete()
    BatchLine.objects.filter(batch=ended).delete()
    Batch.objects.filter(pk=ended.pk).update(error_file_id="")
    with pytest.raises(Conflict, match="no longer stored"):
        failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token=TOKEN)


def test_a_retry_that_is_asked_for_twice_is_one(ended: Batch) -> None:
    before = StoredFile.objects.count()
    first, second = (failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token=TOKEN) for _ in range(2))
    assert first.pk == second.pk and StoredFile.objects.count() == before + 1
    third = failed_lines_retry(batch_id=ended.batch_id, principal=LOCAL, token="1" * 16)
    assert retries_of(ended, principal=LOCAL) == [third, first]


def test_a_batch_with_all_its_metadata_has_retries_that_do_not_name_it(manager) -> None:
    metadata = {str(number): "x" for number in range(MAX_METADATA)}
    full = work(make_batch(LINES, metadata=metadata), make_runner(manager))
    first, second = (
        failed_lines_retry(batch_id=full.batch_id, principal=LOCAL, token=token) for token in (TOKEN, "f" * 16)
    )
    assert first.pk != second.pk and orjson.loads(second.metadata) == metadata
    assert retries_of(full, principal=LOCAL) == []
