"""Two versions of blazr in turns: ``python -m bench.versions --before ../before``.

``../before`` is a worktree of the older commit (``git worktree add ../before COMMIT``). Each round runs ``python -m
bench`` without peers once in each tree, in alternating order, so that a machine that grows slower does so for both.
Prints of each figure the median of the rounds' ratios, this tree by the older one, and each tree's own median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.__main__ import names, positive
from bench.figures import Figures, Interval
from bench.tasks import TASKS
from bench.weights import CHECKPOINTS

HERE = Path(__file__).resolve().parent.parent


def run_round(tree: Path, result: Path, options: list[str]) -> None:
    """One round of ``python -m bench`` in a tree; its samples are added to the file of all rounds.

    Raises:
        CalledProcessError: The benchmark failed.
    """
    command = [sys.executable, "-m", "bench", "--peers", "", "--rounds", "1", "--json", str(result), *options]
    if result.exists():
        command.append("--add")
    subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True, stdout=subprocess.DEVNULL
    )


def by_round(figures: Figures) -> dict[str, dict[int, float]]:
    """Values of "model, implementation, figure" by the number of the round; disturbed rounds have none."""
    found = {
        f"{model}, {implementation}, {figure}": values
        for model, implementations in figures.samples.items()
        for implementation, samples in implementations.items()
        for figure, values in samples.items()
        if "of bound" not in figure
    }
    # A round's name begins with its time, so that the order of the names is the order of the rounds.
    numbers = {moment: number for number, moment in enumerate(sorted({m for values in found.values() for m in values}))}
    return {name: {numbers[moment]: value for moment, value in values.items()} for name, values in found.items()}


def print_ratios(before: Figures, after: Figures) -> None:
    """One line of each figure, of the rounds that both trees have."""
    older, newer = by_round(before), by_round(after)
    for name, values in newer.items():
        common = sorted(set(values) & set(older.get(name, ())))
        if common:
            ratios = Interval.of([values[number] / older[name][number] for number in common])
            medians = (statistics.median(rates[name][number] for number in common) for rates in (older, newer))
            print(f"{name}: {ratios}; before {next(medians):.4g}, now {next(medians):.4g}, {len(common)} rounds")


def main() -> None:
    """Measure both trees and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the older commit")
    parser.add_argument("--models", type=names(list(CHECKPOINTS)), default=["llama-1b", "hybrid", "llama-135m"])
    parser.add_argument("--bits", type=names(("16", "8", "4")), default=["16", "8"])
    parser.add_argument("--tasks", type=names(TASKS), default=["decode1", "decode8", "decode32", "prefill512", "http"])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    parser.add_argument("--results", type=Path, default=Path("bench-versions"), help="a folder for both trees' samples")
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    trees = {"before": given.before.resolve(), "after": HERE}
    files = {name: (given.results / f"{name}.json").resolve() for name in trees}
    options = [
        *("--models", ",".join(given.models), "--bits", ",".join(given.bits)),
        *("--tasks", ",".join(given.tasks), "--cache", str(given.cache.resolve())),
    ]
    for number in range(given.rounds):
        for name in sorted(trees, reverse=bool(number % 2)):
            print(f"round {number + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
            run_round(trees[name], files[name], options)
    print_ratios(Figures.read(files["before"]), Figures.read(files["after"]))


if __name__ == "__main__":
    main()
