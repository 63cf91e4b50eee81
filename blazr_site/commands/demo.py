"""Run ``blazr demo``: train the demo model from the Python help, offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from blazr_site.commands.models import stderr, step_bar
from inference.demo.train import DEFAULT_STEPS, SEED, TrainingReport, create_demo
from inference.errors import InvalidRequest


def run(arguments: argparse.Namespace) -> int:
    """Train and write the model, then print its directory and its bits per character."""
    steps = DEFAULT_STEPS if arguments.steps is None else arguments.steps
    if not 1 <= steps <= 100_000:
        raise InvalidRequest(f"--steps is {steps}, it must be from 1 to 100000.", param="steps")
    with step_bar("Training the demo model", steps) as (bar, task):

        def show(report: TrainingReport) -> None:
            bar.update(task, completed=report.step, note=f"loss {report.loss:.2f}")

        result = create_demo(
            Path(arguments.output),
            steps=steps,
            seed=SEED if arguments.seed is None else arguments.seed,
            on_report=show,
        )
    stderr.print(
        f"Wrote {result.directory}: {result.num_parameters:,} parameters, "
        f"{result.bits_per_character:.2f} bits per character on held-out topics, {result.seconds:.0f} s.",
        markup=False,
    )
    stderr.print(f'Try: blazr generate --model {result.directory} --prompt "The statement"', markup=False)
    return 0
