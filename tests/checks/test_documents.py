"""tests/checks/documents.py: each rule on pages that keep it and on pages that break it."""

from __future__ import annotations

import pytest

from tests.checks import documents

LONG = "a word " * 20


@pytest.fixture
def root(tmp_path):
    """A repository with a README, a decision and a page of the log."""
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    (tmp_path / "docs" / "log").mkdir()
    (tmp_path / "README.md").write_text("# blazr\n")
    (tmp_path / "docs" / "decisions" / "0001-first.md").write_text("# 1. First\n")
    (tmp_path / "docs" / "log" / "old.md").write_text(f"{LONG}, script not kept\n" * 200)
    return tmp_path


def problems(root) -> list[str]:
    return [problem for check in documents.CHECKS for problem in check(root)]


def test_pages_within_the_rules_and_the_log_have_no_problems(root):
    assert problems(root) == []
    assert root / "docs" / "log" / "old.md" not in documents.documents(root)


def test_a_long_line_is_named_with_its_page_and_number(root):
    (root / "docs" / "page.md").write_text(f"# Page\n\n{LONG}\n")
    assert problems(root) == ["docs/page.md:3: more than 110 characters; break the line"]


@pytest.mark.parametrize(
    "line", [f"| {LONG} | {LONG} |", f"- https://example.org/{'a' * 120}", "x" * 111], ids=["row", "link", "word"]
)
def test_rows_of_tables_and_single_words_may_be_long(line):
    assert list(documents.long_lines(line)) == []


@pytest.mark.parametrize(
    "line", [LONG, f"- {LONG}", f"see https://example.org/{'a' * 120}"], ids=["text", "item", "link"]
)
def test_what_can_be_broken_may_not_be_long(line):
    assert list(documents.long_lines(f"short\n{line}")) == [2]


def test_a_line_of_the_greatest_length_passes():
    assert list(documents.long_lines("a " * 55)) == []


def test_readme_and_decisions_have_a_greatest_length(root):
    (root / "README.md").write_text("line\n" * 121)
    (root / "docs" / "decisions" / "0001-first.md").write_text("line\n" * 41)
    found = problems(root)
    assert [text.split(";")[0] for text in found] == [
        "docs/decisions/0001-first.md: 41 lines, at most 40", "README.md: 121 lines, at most 120",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["1.2 ms, script not kept", "1.2 ms (scripts\nnot kept)"])
def test_a_figure_without_a_command_is_refused_even_across_a_line_break(root, text):
    (root / "docs" / "page.md").write_text(text)
    assert len(problems(root)) == 1
    assert "docs/log" in problems(root)[0]
