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
NOT_YET_HEAD = """
## Not yet

These have no test under their number. Other tests cover parts of some of them.

| | Provoked |
|---|---|
"""
TITLES = {
    "F01": "`kill -9` of a worker under open streams, with a second worker and without",
    "F02": "`kill -9` of a worker at 20 random moments of a batch of 500 lines",
    "F03": "death at every named point of claim, flush, finish and file",
    "F04": "`kill -9` of a web process under a stream; the client continues at the other one",
    "F05": "death of a web process between commit and hint",
    "F06": "the connection breaks before the 2xx; 100 retries with one idempotency key at once",
    "F07": "two sweeps at once, one of them killed",
    "F08": "SIGSTOP of a worker past its lease, then SIGCONT",
    "F09": "SIGTERM under streams and a batch",
    "F10": "restart of all processes in turn under load",
    "F11": "random campaign of faults",
    "F12": "loss of everything in Redis while jobs wait",
    "F13": "Redis away for a minute",
    "F14": "Redis without memory",
    "F15": "Redis closes all connections each second",
    "F16": "hints delivered five times, late and out of order",
    "F17": "all hints dropped for a minute",
    "F18": "garbage on the queue",
    "F19": "the database stops at once and returns",
    "F20": "locked tables, deadlocks",
    "F21": "more requests than database connections",
    "F22": "a full disk under an upload",
    "F23": "a full disk under a batch's output",
    "F24": "`kill -9` during an upload",
    "F25": "no memory in a forward pass",
    "F26": "no file descriptors",
    "F27": "clocks that differ and jump",
    "F28": "a batch past its window",
    "F29": "cancels at random moments",
    "F30": "a request that kills its worker, among others",
    "F31": "an exception in the sampling or text of one row of a step",
    "F32": "NaN and infinite logits in one row",
    "F33": "a forward pass that hangs; an engine thread that ends silently",
    "F34": "500 loads and unloads under traffic",
    "F35": "10,000 random schedules against each request alone",
    "F36": "values outside of every parameter's range",
    "F37": "disconnects in every stage, 1,000 times",
    "F38": "readers that read slowly or not at all",
    "F39": "slow headers and bodies on 500 connections",
    "F40": "1,000 streams at once",
    "F41": "100,000 queued jobs",
    "F42": "ten times the capacity for a minute",
    "F43": "one tenant floods, another sends a request each second",
    "F44": "50 requests at once with a limit of 10",
    "F45": "token quotas with cancels, crashes, several choices",
    "F46": "broken safetensors headers",
    "F47": "fuzzed safetensors headers",
    "F48": "hostile config.json",
    "F49": "hostile tokenizer.json",
    "F50": "pickles under every name",
    "F51": "hostile archives",
    "F52": "a file exchanged between check and load",
    "F53": "hostile chat templates",
    "F54": "uploads with wrong lengths, digests and names",
    "F55": "hostile text and JSON in bodies",
    "F56": "hostile patterns and schemas in response_format",
    "F57": "hostile batch files",
    "F58": "schemathesis over all operations and roles",
    "F59": "every route with every kind of caller",
    "F60": "guessed and exchanged ids",
    "F61": "forged requests of a browser",
    "F62": "issued keys in dumps and logs; revocation; timing",
    "F63": "control characters in everything that is logged",
    "F64": "markup and formulas in stored fields",
    "F65": "requests that make the server call others",
    "F66": "one tenant's prefix asked for by another",
    "F67": "the checks of a deployment; listening sockets",
    "F68": "probes and metrics during F13, F19 and F33",
    "F69": "large states beside other requests",
    "F70": "a full disk under a state",
    "F71": "`kill -9` under a save and an upload of a state",
    "F72": "a state whose model or row changes",
    "F73": "how long the work of a lost worker waits for another one",
}
"""The rows; those with a test say more in the test's marker."""


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
    if unknown := {row.number for row in found} - TITLES.keys():
        raise ValueError(f"{sorted(unknown)} are no rows of {__name__}.TITLES")
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
    others = "".join(f"| {number} | {title} |\n" for number, title in TITLES.items() if number not in found)
    not_yet = f"{NOT_YET_HEAD}{others}" if others else ""
    return f"{HEAD}{tested}{not_yet}{campaigns.table(campaigns.runs())}"


if __name__ == "__main__":
    sys.stdout.write(page())
