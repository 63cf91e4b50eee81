"""The page of the advisories: each has a test that exists, or a reason."""

from __future__ import annotations

import pytest

from tests.faults.advisories import ROOT, advisories, page, problems
from tests.faults.advisory_rows import Advisory


def test_the_page_is_what_the_rows_say():
    assert (ROOT / "docs" / "advisories.md").read_text() == page(), "python -m tests.faults.advisories"


def test_every_test_exists_and_every_row_has_one_or_a_reason():
    assert problems(advisories()) == []


def test_each_advisory_has_one_row():
    numbers = [row.number for row in advisories()]
    assert len(set(numbers)) == len(numbers) == 69


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ((), "neither a test nor a reason"),
        (("faults/test_advisories.py::test_nothing",), "there is no test"),
        (("faults/test_none.py::test_nothing",), "there is no test"),
        (("faults/advisories.py::tests_of",), "there is no test"),
        (("faults/test_advisories.py",), "there is no test"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(tests, words):
    [problem] = problems([Advisory("CVE-1", "x", "y", tests)])
    assert words in problem
    assert problems([Advisory("CVE-1", "x", "y", (), "there is no such route")]) == []


def test_methods_of_classes_count():
    assert (
        problems([Advisory("CVE-1", "x", "y", ("inference/engine/test_engine.py::TestDoor::test_bad_prompts",))]) == []
    )
