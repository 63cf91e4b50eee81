"""Kill a trainer and its watcher at random: ``python -m tests.faults.watch_kills --steps 50 --seed 1``.

Each checkpoint must become exactly one revision, and none may be registered before it is whole. While both run, each
registration is compared with what the trainer writes: the registered files, as they are, have the step's own bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.trainer import files_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800.0
TRAINER_KILLS_S, WATCHER_KILLS_S = (1.0, 5.0), (3.0, 14.0)
"""Seconds between kills, drawn evenly."""
_REGISTERED = """
SELECT step.number, step.read, checkpoint.file_stamps, checkpoint.directory FROM models_registry_runstep step
JOIN models_registry_checkpoint checkpoint ON checkpoint.id = step.checkpoint_id WHERE step.state = 'registered'
"""
_REVISIONS = """
SELECT revision.number, revision.checkpoint_name FROM models_registry_aliasrevision revision
JOIN models_registry_modelalias alias ON alias.id = revision.alias_id WHERE alias.name = 'nano' ORDER BY 1
"""


@dataclass
class Killed:
    """A process that is killed at random and started again, until it has ended by itself."""

    command: list[str]
    pause_s: tuple[float, float]
    draws: random.Random
    num_kills: int = 0
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0
    is_done: bool = False

    def turn(self, *, kills: bool = True) -> None:
        """Start it, or kill it if it is time."""
        if self.is_done:
            return
        if self.process is None or self.process.poll() is not None:
            if self.process is not None and self.process.returncode == 0:
                self.is_done = True
                return
            environment = {name: value for name, value in os.environ.items() if not name.startswith("BLAZR_")}
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
            self.due = time.monotonic() + self.draws.uniform(*self.pause_s)
        elif kills and time.monotonic() > self.due:
            self.end()
            self.num_kills += 1

    def end(self) -> None:
        """Kill it, as from outside, at whatever it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass
class Report:
    """What came of a campaign.

    Attributes:
        num_checked: Registrations whose files were compared byte by byte.
        problems: What must not be.
    """

    num_revisions: int = 0
    num_checked: int = 0
    trainer_kills: int = 0
    watcher_kills: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def campaign(directory: Path, *, steps: int, seed: int) -> Report:
    """Train and watch under kills until all steps are written, then let the watcher finish."""
    draws = random.Random(seed)
    run, data, began = directory / "nano", directory / "data", time.monotonic()
    run.mkdir()
    trainer = Killed(
        [sys.executable, "-m", "tests.faults.trainer", str(run), "--steps", str(steps), "--seed", str(seed)],
        TRAINER_KILLS_S, draws,
    )  # fmt: skip
    watch = [sys.executable, "-m", "blazr_site.cli", "watch", str(run), "--no-measure", "--data-dir", str(data)]
    watcher = Killed(watch, WATCHER_KILLS_S, draws)
    report, seen = Report(), set()
    try:
        while not trainer.is_done:
            trainer.turn()
            watcher.turn()
            _check_registered(data, run, seen, report)
            if time.monotonic() - began > LIMIT_S:
                report.problems.append(f"the training didn't end within {LIMIT_S:g} s")
                break
            time.sleep(0.1)
        watcher.end()
        last = Killed([*watch, "--once"], WATCHER_KILLS_S, draws)
        while not last.is_done and time.monotonic() - began < LIMIT_S:
            last.turn(kills=False)
            _check_registered(data, run, seen, report)
            time.sleep(0.1)
        last.end()
    finally:
        trainer.end()
        watcher.end()
    report.trainer_kills, report.watcher_kills = trainer.num_kills, watcher.num_kills
    _check_end(data, run, steps, report)
    report.seconds = time.monotonic() - began
    return report


def _rows(data: Path, query: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"file:{data / 'db.sqlite3'}?mode=ro", uri=True, timeout=5)) as database:
            return database.execute(query).fetchall()
    except sqlite3.OperationalError:  # not there yet, or not yet with its tables
        return []


def _check_registered(data: Path, run: Path, seen: set[tuple[int, str]], report: Report) -> None:
    """Compare what was registered since the last call with the bytes that the trainer writes for the step."""
    for step, read, stamps, directory in _rows(data, _REGISTERED):
        if (step, read) in seen:
            continue
        seen.add((step, read))
        problem = _problem(step, json.loads(stamps), Path(directory), run)
        if problem is None:
            report.num_checked += 1
        elif problem:
            report.problems.append(f"step {step}: {problem}")


def _problem(step: int, stamps: list[dict[str, Any]], directory: Path, run: Path) -> str | None:
    """Why a registration is of half a checkpoint; empty: its files are being written again, so nobody can know."""
    expected = {run / name: content for name, content in files_of(step).items()}
    by_path = {directory / stamp["name"]: stamp for stamp in stamps}
    for file, content in expected.items():
        stamp = by_path.get(file)
        if stamp is None:
            return f"{file.name} isn't registered"
        if stamp["size_bytes"] != len(content):
            return f"{file.name} was registered with {stamp['size_bytes']} of {len(content)} bytes"
        found, status = file.read_bytes(), file.stat()
        if (status.st_mtime_ns, status.st_ino) != (stamp["mtime_ns"], stamp["inode"]):
            return ""
        if found != content:
            return f"{file.name} was registered with other bytes than the trainer's"
    return None


def _check_end(data: Path, run: Path, steps: int, report: Report) -> None:
    revisions = _rows(data, _REVISIONS)
    report.num_revisions = len(revisions)
    if [number for number, _ in revisions] != list(range(1, steps + 1)):
        report.problems.append(f"{len(revisions)} revisions of {steps} steps")
    names = {name for _, name in revisions}
    if names != {f"nano-step-{step}" for step in range(1, steps + 1)}:
        report.problems.append("the revisions aren't of the steps, each once")
    found = {step: (json.loads(stamps), Path(place)) for step, _, stamps, place in _rows(data, _REGISTERED)}
    for step in range(1, steps + 1):
        problem = _problem(step, *found[step], run) if step in found else "isn't registered"
        if problem is not None:
            report.problems.append(f"step {step} in the end: {problem or 'its files are others than the registered'}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills a trainer and its watcher at random.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blazr-watch-") as directory:
        report = campaign(Path(directory), steps=arguments.steps, seed=arguments.seed)
    sys.stdout.write(
        f"{report.num_revisions} revisions of {arguments.steps} steps, {report.num_checked} registrations compared by "
        f"bytes, {report.trainer_kills} kills of the trainer, {report.watcher_kills} of the watcher, "
        f"{report.seconds:.0f} s\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"  {problem}\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
