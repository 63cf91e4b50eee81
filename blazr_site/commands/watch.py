"""Run ``blazr watch``: register the checkpoints of a training run as they are completed, and measure them."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from django.db import OperationalError, close_old_connections
from rich.text import Text

from blazr_site.commands.models import stderr
from inference.errors import InvalidRequest
from inference.models.readable_rows import readable_rows
from models_registry import storage
from models_registry.models import RunStep, TrainingRun
from models_registry.runs.measuring import STEP_MEASUREMENTS, measure_next, next_step
from models_registry.runs.promoted_copies import uncopied_steps
from models_registry.runs.services import run_create, run_resume, run_update
from models_registry.runs.turns import COPIES, start_copies
from models_registry.runs.watching import LOOK_EVERY_S, NEXT_LOOK, NOT_REGISTERED, run_look
from models_registry.span_measurements import MAX_TEXT_BYTES

MAX_RETRIES = 10
"""Looks of ``--once`` at what may be registered or copied at the next try."""
MAX_COPY_LOOKS = 200
"""Looks of ``--once`` while another process copies a checkpoint: ten minutes."""
OPTIONS = ("max_tokens", "temperature", "seed", "loss_tokens", "max_seconds")


def run(arguments: argparse.Namespace) -> int:
    """Look every few seconds until Ctrl-C, or with ``--once`` until nothing is left to do.

    Returns:
        0; 1 if a checkpoint wasn't registered or a promoted one wasn't copied, which is printed.
    """
    run_ = start(arguments)
    stderr.print(
        Text(f"watching {run_.directory} as {run_.name}; Ctrl-C stops, the rows stay", style="dim"), soft_wrap=True
    )
    printed, retries, copy_looks = Printed(), MAX_RETRIES, MAX_COPY_LOOKS
    while True:
        try:
            if _turn(run_, printed, measures=not arguments.no_measure) and arguments.once:
                COPIES.wait()
                if copy_looks and _is_copied_by_others(run_):
                    copy_looks -= 1
                elif retries and _is_retried(run_):
                    retries -= 1
                else:
                    return _print_failures(run_)
        except OperationalError as error:  # an outage or a lock of the database: the rows are as they were
            stderr.print(Text.assemble(("note:", "yellow"), f" the database can't be used now: {error}"))
            close_old_connections()
        time.sleep(LOOK_EVERY_S)


def start(arguments: argparse.Namespace) -> TrainingRun:
    """Return the run of the directory, a new one or one to go on with, with the given options."""
    options: dict[str, Any] = {name: getattr(arguments, name) for name in OPTIONS}
    options |= {"prompts": arguments.prompt, "text": _text(arguments.text)}
    place = str(Path(arguments.directory).expanduser().resolve())
    known = TrainingRun.objects.filter(directory=place).first()
    if known is None:
        return run_create(directory=place, name=arguments.name, by_operator=True, **options)
    if arguments.name not in ("", known.name):
        raise InvalidRequest(f"--name is {arguments.name[:96]}, but {place} is watched as {known.name}.", param="name")
    run_resume(known, by_operator=True)
    run_update(known, **options)
    return known


def _turn(run_: TrainingRun, printed: Printed, *, measures: bool) -> bool:
    """Look once, start copies and a measurement if none runs, print what is new; returns whether no more will come."""
    run_look(run_)
    start_copies([run_])
    if measures:
        measure_next(run_)
    steps = readable_rows(run_.steps.all())
    printed.update(run_, steps)
    is_still = not any(step.reason.endswith(NEXT_LOOK) for step in steps)
    return is_still and (not measures or (next_step(run_) is None and not _is_measuring(run_)))


def _is_copied_by_others(run_: TrainingRun) -> bool:
    """Whether another process copies one of the run's checkpoints now; this one copies none."""
    for step in uncopied_steps(run_):
        assert step.checkpoint is not None
        with storage.copy_lock(step.checkpoint.pk) as is_free:
            if not is_free:
                return True
    return False


def _is_retried(run_: TrainingRun) -> bool:
    """Whether the next look tries something again: a registration, or a copy that was left to another process."""
    is_uncopied = any(not step.reason for step in uncopied_steps(run_))
    return is_uncopied or any(step.reason.startswith(NOT_REGISTERED) for step in readable_rows(run_.steps.all()))


def _print_failures(run_: TrainingRun) -> int:
    """Print what was neither registered nor copied; returns the exit code."""
    failures = failures_of(run_)
    for failure in failures:
        stderr.print(Text(failure), soft_wrap=True)
    return 1 if failures else 0


def failures_of(run_: TrainingRun) -> list[str]:
    """Return what has failed, a line each: a directory that is gone, registrations, copies of promoted checkpoints."""
    failures = [run_.reason] if run_.state == TrainingRun.State.MISSING else []
    uncopied = {step.pk for step in uncopied_steps(run_)}
    for step in readable_rows(run_.steps.all()):
        if step.state == RunStep.State.REFUSED:
            failures.append(f"{step.label}: refused: {step.reason}")
        elif step.reason.startswith(NOT_REGISTERED):
            failures.append(f"{step.label}: {step.reason}")
        elif step.pk in uncopied:
            failures.append(f"{step.label}: {step.reason or 'promoted, but not copied yet'}")
    return failures


def _is_measuring(run_: TrainingRun) -> bool:
    return STEP_MEASUREMENTS.rows().filter(state="running", step__run=run_).exists()


class Printed:
    """What was printed, so that each thing is printed once."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._state = ""

    def update(self, run_: TrainingRun, steps: list[RunStep]) -> None:
        """Print new lines: of steps to standard output, of the directory to the error stream."""
        if run_.reason != self._state:
            self._state = run_.reason
            stderr.print(Text(run_.reason or f"{run_.directory} is there again"), soft_wrap=True)
        for step in steps:
            for line in lines_of(run_, step):
                if line not in self._lines:
                    self._lines.add(line)
                    sys.stdout.write(line + "\n")
        sys.stdout.flush()


def lines_of(run_: TrainingRun, step: RunStep) -> list[str]:
    """Return what there is to say of a step."""
    if step.state == RunStep.State.REFUSED:
        return [f"{step.label}: refused: {step.reason}"]
    if step.state == RunStep.State.INCOMPLETE:
        return []
    lines = [f"{step.label}: {run_.name}@{step.revision}"]
    if step.loss is not None:
        lines.append(f"{step.label}: loss {step.loss:.4f} over {step.num_tokens} tokens")
    if step.problem:
        lines.append(f"{step.label}: {step.problem}")
    return lines


def _text(name: str | None) -> str | None:
    """Return the held-out text of a file; None: none is named."""
    if name is None:
        return None
    path = Path(name).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_TEXT_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--text {str(path)!r} can't be read as UTF-8 text: {error}.", param="text") from None
