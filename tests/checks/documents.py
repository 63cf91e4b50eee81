"""Check the documents: ``python -m tests.checks.documents``.

Rules: lines of at most 110 characters in Markdown, a README of at most 120 lines, decisions of at most 40, and no
figure whose script was thrown away. ``docs/log`` keeps history as it was written and is left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MAX_LINE_LENGTH = 110
MAX_README_LINES = 120
MAX_DECISION_LINES = 40
RETIRED_WORDS = ("script not kept", "scripts not kept")
"""A figure outside of the log has a command in the repository."""

_UNBREAKABLE = re.compile(r"\s*(?:(?:[-*]|\d+\.)\s+)?\S+")


def documents(root: Path = ROOT) -> list[Path]:
    """All Markdown pages of the repository but those of the log."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(page for page in pages if root / "docs" / "log" not in page.parents)


def long_lines(text: str) -> Iterator[int]:
    """Numbers of lines that are too long and could be broken: rows of tables and single words can't."""
    for number, line in enumerate(text.splitlines(), start=1):
        is_row = line.lstrip().startswith("|")
        if len(line) > MAX_LINE_LENGTH and not is_row and not _UNBREAKABLE.fullmatch(line):
            yield number


def line_lengths(root: Path = ROOT) -> Iterator[str]:
    """Lines over the limit."""
    for page in documents(root):
        for number in long_lines(page.read_text()):
            name = page.relative_to(root).as_posix()
            yield f"{name}:{number}: more than {MAX_LINE_LENGTH} characters; break the line"


def page_lengths(root: Path = ROOT) -> Iterator[str]:
    """Pages over their limits."""
    limits = dict.fromkeys(sorted((root / "docs" / "decisions").glob("*.md")), MAX_DECISION_LINES)
    limits[root / "README.md"] = MAX_README_LINES
    for page, limit in limits.items():
        count = len(page.read_text().splitlines())
        if count > limit:
            name = page.relative_to(root).as_posix()
            yield f"{name}: {count} lines, at most {limit}; move history to docs/log, detail to a page of its own"


def figures_without_command(root: Path = ROOT) -> Iterator[str]:
    """Sentences that admit that a figure can't be measured again, also where a line break parts their words."""
    for page in documents(root):
        plain = " ".join(page.read_text().lower().split())
        for words in RETIRED_WORDS:
            if words in plain:
                name = page.relative_to(root).as_posix()
                yield f"{name}: {words!r}; name a command of the repository, or move the figure to docs/log"


CHECKS = (line_lengths, page_lengths, figures_without_command)


def main() -> int:
    """Print what is wrong; the exit status is 1 then."""
    problems = [problem for check in CHECKS for problem in check()]
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
