"""Print the table of advisories: ``python -m tests.faults.advisories > docs/advisories.md``; a test compares them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.advisory_rows import ROWS, Advisory

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Advisories

Published holes of other inference servers and of libraries, by cause, and the tests that would fail if blazr
had them. `python -m tests.faults.advisories > docs/advisories.md` writes this page. Paths are below `tests`.
"""
COLUMNS = """
| | In | What went wrong | Here |
|---|---|---|---|
"""


def advisories() -> list[Advisory]:
    """All advisories, in the page's order."""
    return [row for rows in ROWS.values() for row in rows]


def tests_of(path: Path) -> set[str]:
    """What pytest collects in a file: functions, and methods of its classes, without the file's name."""
    return set(_collected(ast.parse(path.read_text()).body))


def _collected(nodes: Iterable[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _collected(node.body, f"{node.name}::")


def problems(rows: Iterable[Advisory], root: Path = ROOT) -> list[str]:
    """What is wrong with rows: a test that doesn't exist, or neither a test nor a reason."""
    found = []
    for row in rows:
        if not row.flaw or not (row.tests or row.reason):
            found.append(f"{row.number} has no flaw, or neither a test nor a reason")
        for test in row.tests:
            name, _, item = test.partition("::")
            path = root / "tests" / name
            if not (path.name.startswith("test_") and path.is_file() and item in tests_of(path)):
                found.append(f"{row.number}: there is no test {test}")
    return found


def page() -> str:
    """Return the page."""
    text = HEAD
    for cause, rows in ROWS.items():
        text += f"\n## {cause}\n{COLUMNS}"
        for row in rows:
            here = ", ".join(f"`{test}`" for test in row.tests)
            text += f"| {row.number} | {row.product} | {row.flaw} | {' '.join(filter(None, (row.reason, here)))} |\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(page())
