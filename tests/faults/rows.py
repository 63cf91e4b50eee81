"""Print the table of faults as Markdown: ``python -m tests.faults.rows > docs/faults.md``; a test compares them.

A test proves a row when it has the marker ``fault`` with the row's number.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults import campaigns

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Faults

What is done to a running server on purpose, and what must hold meanwhile and afterwards. Each row is a test
with the marker `fault`; `python -m tests.faults.rows > docs/faults.md` writes this page. The tests run real
processes: Redis, two web processes, two workers and beat, which are started again when they end, as
`blazr serve` does. `make faults` runs row F11 with 1,000 jobs and 200 faults for each of ten seeds
(`ARGS="--jobs 150 --kills 25 --seed 3"`); a seed gives the same requests and the same order of faults.
`make faults ARGS="--rows F09,F10 --times 20"` repeats the tests of rows, F13 with `--outage 60`.
Rows F25, F31, F32, F34 and F35 run engines in the test's own process; their long forms are
`python -m tests.faults.engine_schedules --schedules 10000` and
`python -m tests.faults.engine_loads --cycles 250`.
`python -m tests.faults.load SCENARIO` runs the whole forms of rows F24, F37, F38, F40 to F45 and F66, the
estimates of waits, and a soak with a fault every 30 s (`soak --minutes 60`).

| | Provoked | Must hold | Test |
|---|---|---|---|
"""
NUMBERS = tuple(f"F{number:02}" for number in range(1, 74))
"""The rows; each has a test."""


@dataclass(frozen=True)
class Row:
    """What a test proves of a row; a row may have several.

    Attributes:
        test: Path and name of the test.
    """

    number: str
    provoked: str
    holds: str
    test: str


def rows_with_test(root: Path = ROOT) -> list[Row]:
    """The rows of all markers, in order.

    Raises:
        ValueError: A marker's number is no row, or a marker lacks a text.
    """
    found = [row for path in sorted((root / "tests").rglob("test_*.py")) for row in _rows_of(path, root)]
    if unknown := {row.number for row in found}.difference(NUMBERS):
        raise ValueError(f"{sorted(unknown)} are no rows of {__name__}.NUMBERS")
    return sorted(found, key=lambda row: row.number)


def _rows_of(path: Path, root: Path) -> Iterator[Row]:
    source = path.read_text()
    if "mark.fault(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        for item in node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ():
            if isinstance(item, ast.Call) and ast.unparse(item.func) == "pytest.mark.fault":
                texts = {keyword.arg: ast.literal_eval(keyword.value) for keyword in item.keywords}
                if texts.keys() != {"provoked", "holds"}:
                    raise ValueError(f"{path}: the marker of {node.name} needs provoked and holds")
                test = f"{path.relative_to(root).as_posix()}::{node.name}"
                yield Row(ast.literal_eval(item.args[0]), texts["provoked"], texts["holds"], test)


def node_ids(numbers: Iterable[str], root: Path = ROOT) -> list[str]:
    """The tests of the given rows, as pytest takes them.

    Raises:
        ValueError: A row has no test.
    """
    found = _by_number(root)
    if missing := [number for number in numbers if number not in found]:
        raise ValueError(f"{', '.join(missing)}: no such row has a test; there are {', '.join(found)}")
    return [row.test for number in numbers for row in found[number]]


def _by_number(root: Path) -> dict[str, list[Row]]:
    rows = rows_with_test(root)
    return {row.number: [other for other in rows if other.number == row.number] for row in rows}


def page(root: Path = ROOT) -> str:
    """Return the page."""
    found = _by_number(root)
    tested = ""
    for number, rows in found.items():
        provoked, holds = (
            "; ".join(dict.fromkeys(texts)) for texts in ([row.provoked for row in rows], [row.holds for row in rows])
        )
        tested += f"| {number} | {provoked} | {holds} | {', '.join(f'`{row.test}`' for row in rows)} |\n"
    return f"{HEAD}{tested}{campaigns.table(campaigns.runs())}"


if __name__ == "__main__":
    sys.stdout.write(page())
