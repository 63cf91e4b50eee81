"""Lines of a batch as people read them, and its errors in groups."""

from __future__ import annotations

import pytest

from inference.batches import inspection
from inference.batches.inspection import error_groups, line_get, lines_page, num_running, payload_of
from inference.batches.line_requests import line_id, line_number
from inference.models import BatchLine
from inference.models.batches import Batch
from tests.inference.batches.fakes import line, make_batch, make_runner, work


@pytest.fixture
def batch(manager) -> Batch:
    lines = [line("a-1", "one"), line("a-2", "two"), line("b-1", temperature=77), line("b-2", temperature=88)]
    return work(make_batch([*lines, line("c", model="nobody")]), make_runner(manager))


def numbers(batch: Batch, **values) -> list[int]:
    return [item.number for item in lines_page(batch, **{"state": "", "search": "", "after": 0, "limit": 9, **values})]


def test_lines_are_filtered_and_paged(batch: Batch) -> None:
    assert numbers(batch) == [1, 2, 3, 4, 5]
    assert numbers(batch, limit=2) == [1, 2] and numbers(batch, after=2, limit=2) == [3, 4]
    assert numbers(batch, search="a-") == [1, 2] and numbers(batch, search="a-\0") == [1, 2]
    assert numbers(batch, state="failed") == [3, 4, 5] and numbers(batch, state="queued") == []
    assert numbers(batch, after=5) == numbers(make_batch([line("x")])) == []
    assert num_running(batch) == 0


def test_a_listed_line_has_its_request_and_its_result_unless_they_are_long(batch: Batch, monkeypatch) -> None:
    first = lines_page(batch, state="", search="a-1", after=0, limit=1)[0]
    assert first.body is not None and first.payload is not None and not first.is_long
    assert (first.body["prompt"], first.payload["response"]["body"]["choices"][0]["text"]) == ("one", "eno")
    monkeypatch.setattr(inspection, "MAX_LISTED_CHARS", 100)
    first = lines_page(batch, state="", search="a-1", after=0, limit=1)[0]
    assert first.body is not None and first.payload is None and first.is_long
    found = line_get(batch, 1)
    assert found is not None and found[1] is not None and payload_of(found[1])["custom_id"] == "a-1"
    assert line_get(batch, 6) is None


def test_errors_that_differ_in_numbers_are_one_group(batch: Batch) -> None:
    first, second = error_groups(batch)
    assert (first.count, first.custom_id, first.number, "77" in first.message) == (2, "b-1", 3, True)
    assert (second.code, second.count, second.custom_id) == ("model_not_found", 1, "c")


def test_the_error_file_is_read_when_lines_are_gone(batch: Batch, settings) -> None:
    before = error_groups(batch)
    assert inspection.has_lines(batch)
    BatchLine.objects.filter(batch=batch, number__lte=3).delete()
    assert error_groups(batch) == before and not inspection.has_lines(batch)
    BatchLine.objects.filter(batch=batch).delete()
    assert error_groups(batch) == before and not inspection.has_lines(batch)
    for file in (settings.BLAZR_FILES_DIR).glob("*"):
        if file.is_file():
            file.unlink()
    assert error_groups(batch) == []


def test_groups_are_made_of_the_first_errors(batch: Batch, monkeypatch) -> None:
    monkeypatch.setattr(inspection, "MAX_GROUPED", 1)
    assert [group.count for group in error_groups(batch)] == [1]


def test_a_damaged_payload_is_an_error_without_a_message(batch: Batch) -> None:
    assert inspection.error_of(inspection.json_object("{")) == ("error", "It failed without a message.")
    assert inspection.json_object(b"[1]") == {}


def test_an_id_of_a_line_names_its_number() -> None:
    name = "batch_" + "a" * 32
    assert line_number(line_id(name, 4711), name) == 4711
    assert line_number("", name) == line_number("batch_req_zz", name) == line_number(line_id("batch_b", 7), name) == 0
