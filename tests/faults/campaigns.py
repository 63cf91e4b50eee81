"""Sum up the recorded campaigns against what is wanted: ``python -m tests.faults.campaigns``.

The long forms of tests take hours. Each appends a line to ``campaigns.jsonl`` with ``--record``, so that runs of
different days and machines add up: by seed, as a seed repeats its requests. A run with failures counts for nothing,
and its seed counts again once it has passed in a later run that is at least as long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDS = Path(__file__).with_name("campaigns.jsonl")
JOBS, FAULTS = 1000, 200
"""Of a whole campaign of random faults."""
HEAD = """
## Campaigns

What the long forms have run so far without a failure: the sum of `tests/faults/campaigns.jsonl`. Each
appends a line with `--record`; give it a `--seed` that isn't there yet. `python -m tests.faults.campaigns`
prints this table.

| | Command | Passed | Wanted | Seeds | Hours | Seeds that failed and haven't passed since |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Wanted:
    """How much of a campaign has to pass.

    Attributes:
        what: What is counted.
    """

    command: str
    what: str
    number: int


WANTED = {
    "kills": Wanted("tests.faults", f"campaigns of {JOBS:,} jobs under {FAULTS} kill -9 and SIGSTOP", 10),
    **{
        f"engine {fault}": Wanted(f"tests.faults.engine_schedules --faults {fault}", f"schedules {what}", 10_000)
        for fault, what in (
            ("none", "of an engine without a fault"), ("memory", "without memory"),
            ("exception", "with an exception in a row"), ("logits", "with unusable logits in a row"),
        )
    },
    "conformance": Wanted("tests.live.conformance", "requests made from the OpenAPI document", 100_000),
    "fuzz": Wanted("tests.faults.fuzz", "changed headers, configs, tokenizers", 10_000_000),
    "job schedules": Wanted("tests.faults.job_schedules", "schedules of the jobs' state machine", 100_000),
    **{
        f"row {row}": Wanted(f"tests.faults --rows {row} --times {times}{more}", what, number)
        for row, times, more, what, number in (
            ("F01", 25, "", "runs of eight streams under `kill -9`, 25 of one worker and 25 of both", 50),
            ("F09", 200, "", "SIGTERM of a worker under 16 streams and a batch", 200),
            ("F12", 20, "", "runs with `FLUSHALL` and with the loss of Redis and its files", 20),
            ("F13", 20, " --outage 60", "minutes without Redis", 20),
            ("F73", 25, "", "runs that kill and stop a worker each, and time the restart of its work", 25),
        )
    },
    **{
        f"load {scenario}": Wanted(f"tests.faults.load {scenario}", what, 1)
        for scenario, what in (
            ("disconnects", "1,000 clients that leave"), ("streams", "1,000 streams at once"),
            ("jobs", "100,000 queued jobs"), ("overload", "a minute of ten times the capacity"),
            ("limits", "1,000 rounds of 50 requests at a limit of 10"), ("uploads", "5 GB under three kills"),
            ("soak", "an hour at 70 % load with a fault every 30 s"),
            ("readers", "24 slow readers"), ("tenants", "a minute's flood beside another tenant"),
            ("quotas", "200 requests with a quota, 5 crashes"), ("prefixes", "200 pairs of prompts"),
            ("waits", "estimates of the wait of 200 requests"),
        )
    },
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run of a campaign, a line of the file.

    Attributes:
        commit: What was tested; "-dirty" behind it: with changes.
        size: What has run, in the unit of ``Wanted``.
        figures: Whatever else the command counts.
    """

    campaign: str
    commit: str
    date: str
    seed: int
    size: int
    failures: int
    seconds: float
    figures: dict[str, Any]


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--record`` to a command's arguments."""
    where = RECORDS.relative_to(ROOT)
    parser.add_argument("--record", nargs="?", type=Path, const=RECORDS, help=f"append to this file; {where}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def record(
    path: Path | None, campaign: str, *, seed: int, size: int, failures: int, seconds: float, figures: Mapping[str, Any]
) -> None:
    """Append a run to the file of the argument ``--record``, if that was given."""
    if path is None:
        return
    commit = _git("rev-parse", "--short=12", "HEAD")
    # The records themselves change with each run.
    if _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORDS.relative_to(ROOT)}"):
        commit += "-dirty"
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    run = Run(campaign, commit, date, seed, size, failures, round(seconds, 1), dict(figures))
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs(path: Path = RECORDS) -> list[Run]:
    """The runs of the file, in its order.

    Raises:
        ValueError: A campaign that isn't wanted.
    """
    found = [Run(**json.loads(line)) for line in path.read_text().splitlines()]
    if unknown := {run.campaign for run in found} - WANTED.keys():
        raise ValueError(f"{sorted(unknown)} are no campaigns of {__name__}.WANTED")
    return found


def passed(of_one_seed: Iterable[Run]) -> int | None:
    """What counts of the runs of one seed; None: it failed and hasn't passed since."""
    size, needed = 0, None
    for run in of_one_seed:
        if run.failures:
            size, needed = 0, max(run.size, needed or 0)
        elif needed is None or run.size >= needed:
            size, needed = max(run.size, size), None
    return size if needed is None else None


def table(found: Iterable[Run]) -> str:
    """The sum, as Markdown."""
    found, lines = list(found), []
    for name, wanted in WANTED.items():
        of_it = [run for run in found if run.campaign == name]
        by_seed = {seed: passed(run for run in of_it if run.seed == seed) for seed in sorted({r.seed for r in of_it})}
        failed = [str(seed) for seed, size in by_seed.items() if size is None]
        total, hours = sum(size or 0 for size in by_seed.values()), sum(run.seconds for run in of_it) / 3600
        lines.append(
            f"| {wanted.what} | `python -m {wanted.command}` | {total:,} | {wanted.number:,} | {len(by_seed)} | "
            f"{hours:.1f} | {', '.join(failed)} |\n"
        )
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(runs()))
