"""python -m bench: our engine and its peers on the same random weights, in turns.

Makes the weights, the peers' environments and their files on first use (under --cache), then measures in rounds:
every implementation in a child process of its own environment, one at a time. Prints tables of rates (with shares of
the machine's bounds), of ratios to each peer, and why anything could not be measured; --json keeps the samples, --plot
draws them.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.bounds import read_sizes
from bench.disturbance import Disturbed, family_of, undisturbed
from bench.environments import Environments
from bench.figures import Figures
from bench.implementations import IMPLEMENTATIONS, PEERS, Implementation, Job
from bench.machine import processor_name
from bench.plot import write_plot
from bench.processes import Child
from bench.report import add_bounds, print_report
from bench.tasks import TASKS, Cell, Lengths
from bench.weights import CHECKPOINTS, make_checkpoint

DEFAULT_MODELS = ("llama-135m", "mamba2", "hybrid", "nano", "llama-1b")


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Type of an option that takes several of ``allowed``, with commas."""

    def parse(text: str) -> list[str]:
        chosen = [item for item in text.split(",") if item]
        for item in chosen:
            if item not in allowed:
                raise argparse.ArgumentTypeError(f"{item!r} is none of {', '.join(allowed)}")
        return chosen

    return parse


def positive(text: str) -> int:
    """Type of an option that counts."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 1")
    return int(text)


def parse_arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    models = list(CHECKPOINTS)
    parser.add_argument(
        "--models", type=names(models), default=list(DEFAULT_MODELS), help=f"with commas: {', '.join(models)}"
    )
    parser.add_argument(
        "--peers", type=names(PEERS), default=list(PEERS), help=f"with commas: {', '.join(PEERS)}; '' for none"
    )
    parser.add_argument("--bits", type=names(("16", "8", "4")), default=["16", "8", "4"], help="with commas: 16, 8, 4")
    parser.add_argument(
        "--tasks",
        type=names(TASKS),
        default=list(TASKS),
        help=f"with commas: {', '.join(TASKS)} (own: the engine's own work at batch 32)",
    )
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, fewer tokens: does everything work?")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench", help="for all files")
    parser.add_argument("--json", type=Path, help="write the samples here after each child")
    parser.add_argument("--add", action="store_true", help="keep the samples that the file of --json already has")
    parser.add_argument("--report-only", action="store_true", help="print the tables of the file of --json")
    parser.add_argument("--plot", type=Path, help="draw the samples into this SVG file")
    parser.add_argument(
        "--prefix", default="", help="a command put before each measured process, such as 'taskset -c 0-3'"
    )
    given = parser.parse_args(values)
    if (given.add or given.report_only) and given.json is None:
        parser.error("--add and --report-only need --json FILE")
    return given


def measure(given: argparse.Namespace, figures: Figures, lengths: Lengths, console: Console) -> None:
    """Run everything; implementations alternate within each round."""
    console.print("[dim]native kernels (built if their sources have changed)[/]")
    subprocess.run([sys.executable, "-m", "inference.modelling.backends.native.build"], check=False)
    environments = Environments(given.cache, lambda text: console.print(f"[dim]{text}[/]"))
    checkpoints = {}
    for model in given.models:
        console.print(f"[dim]weights of {model}[/]")
        checkpoints[model] = make_checkpoint(model, given.cache / "checkpoints")
    sizes = {model: read_sizes(directory) for model, directory in checkpoints.items()}
    if not figures.machine:
        console.print("[dim]limits of this machine[/]")
        figures.machine = measure_machine(given.prefix)
    rounds = 1 if given.quick else given.rounds
    run = time.strftime("%Y-%m-%d %H:%M:%S")
    seeds = itertools.count(int(time.time()) % 1_000_000 * 100)
    cells = [
        (model, number, implementation)
        for model in given.models
        for number in range(rounds)
        for implementation in chosen(given)
    ]
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("", total=len(cells))
        for model, number, implementation in cells:
            title = f"{model}, round {number + 1} of {rounds}, {implementation.name}"
            job = Job(checkpoints[model], sizes[model].vocab_size, environments, given.prefix)
            cell = Cell(
                figures,
                implementation,
                job,
                f"{run} round {number + 1}",
                lengths,
                lambda: next(seeds),
                lambda text, title=title: progress.update(bar, description=f"{title}: {text}"),  # type: ignore[misc]
            )
            cell.measure(given.tasks)
            progress.advance(bar)
            if given.json:
                figures.save(given.json)


def chosen(given: argparse.Namespace) -> list[Implementation]:
    bits = {int(item) for item in given.bits}
    return [item for item in IMPLEMENTATIONS if item.bits in bits and item.peer in ("blazr", *given.peers)]


def measure_machine(prefix: str) -> dict[str, object]:
    child = Child("machine", prefix=prefix)
    try:
        own = family_of(child.process.pid)
        try:
            limits = {name: undisturbed(own, lambda name=name: child.run(name))[0] for name in ("bandwidth", "gemm")}  # type: ignore[misc]
        except Disturbed as error:
            raise SystemExit(f"the limits of this machine can't be measured: {error}") from None
        return {"processor": processor_name(), "threads": child.facts["threads"], **limits}
    finally:
        child.close()


def main() -> None:
    """Parse options, measure, report, save."""
    given, console = parse_arguments(), Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file has room
    lengths = replace(Lengths(), decode_new=24, http_new=24, repeats=1) if given.quick else Lengths()
    keep = given.add or given.report_only
    figures = Figures.read(given.json) if keep and given.json.exists() else Figures()
    if not given.report_only:
        measure(given, figures, lengths, console)
    kept = {model: given.cache / "checkpoints" / model for model in figures.samples}
    sizes = {model: read_sizes(directory) for model, directory in kept.items() if directory.exists()}
    add_bounds(figures, sizes, lengths)
    print_report(figures, console)
    if given.json and not given.report_only:
        figures.save(given.json)
    if given.plot:
        write_plot(figures, given.plot)
        console.print(f"[dim]drawn: {given.plot}[/]")


if __name__ == "__main__":
    main()
