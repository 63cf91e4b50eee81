"""The page of the faults, and what a marker may say."""

from __future__ import annotations

import pytest

from tests.faults.rows import NUMBERS, ROOT, node_ids, page, rows_with_test

TEST = """
import pytest

@pytest.mark.fault("{number}", {texts})
def test_it(): ...
"""


def test_the_page_is_what_the_markers_say():
    assert (ROOT / "docs" / "faults.md").read_text() == page(), "python -m tests.faults.rows > docs/faults.md"


def test_every_row_is_on_the_page_once():
    text = page()
    assert [text.count(f"| {number} |") for number in NUMBERS] == [1] * 73


@pytest.mark.parametrize(
    ("number", "texts", "message"),
    [("F99", "provoked='a', holds='b'", "'F99'"), ("F01", "provoked='a'", "needs provoked and holds")],
    ids=["no row", "no text"],
)
def test_a_wrong_marker_is_refused(tmp_path, number, texts, message):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TEST.format(number=number, texts=texts))
    with pytest.raises(ValueError, match=message):
        rows_with_test(tmp_path)


def test_rows_are_run_by_their_numbers():
    assert node_ids(["F09", "F01"])[0].endswith(
        "test_site_faults.py::test_f09_a_worker_that_is_asked_to_stop_loses_nothing"
    )
    assert len(node_ids(["F65"])) == 3
    with pytest.raises(ValueError, match="F99: no such row has a test; there are F01, "):
        node_ids(["F01", "F99"])
