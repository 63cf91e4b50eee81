"""python -m bench.soak: hundreds of thousands of requests that nobody has sent before, to a real server.

There are two phases: ``unique`` (completions of random token ids) and ``mixed`` (all endpoints, grammars, n, stop
strings, streams and not, clients that leave early). Both go to two tiny models, one of attention and one hybrid. The
soak fails when a process or an engine ends, a request fails, a repeated greedy request gets another text, or the memory
of web or worker grows by more than 1 % in the second half of a phase. Memory is judged from 20,000 requests a phase on;
before that it is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.soak.over_http import HttpPhase
from bench.soak.requests import RequestSource
from bench.soak.server import checkpoints, running_server, served
from bench.soak.verdict import Phase, lines, problems, summary

SHOW_S = 10.0


@contextmanager
def progress(name: str, total: int, max_seconds: float | None, console: Console) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line every ten seconds elsewhere."""
    started = time.monotonic()
    if console.is_terminal:
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bars:
            task = bars.add_task(name, total=total if max_seconds is None else None)
            yield lambda count: bars.update(task, completed=count)
        return
    shown_at = started

    def show(count: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at >= SHOW_S:
            shown_at = now
            of = f" of {total:,}" if max_seconds is None else ""
            console.print(f"{name}: {count:,}{of} requests, {now - started:.0f} s", highlight=False)

    yield show


def soak_server(given: argparse.Namespace, console: Console) -> list[Phase]:
    phases = []
    repeats: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="blazr-soak-") as folder:
        models = checkpoints(Path(folder))
        source = RequestSource(served(models), given.seed)
        with running_server(models, Path(folder)) as server:
            for name, total, make in (("unique", given.unique, source.unique), ("mixed", given.mixed, source.mixed)):
                if total == 0:
                    continue
                phase = Phase(name)
                phases.append(phase)
                seconds = given.minutes * 30 if given.minutes else None  # half of the time each
                with progress(name, total, seconds, console) as show:
                    HttpPhase(server, phase, make, repeats).run(total, given.clients, seconds, show)
                if server.process.poll() is not None:
                    phase.deaths.append(f"blazr serve, with status {server.process.returncode}")
                    break
        phases[-1].failures += server.tracebacks()
    return phases


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--unique", type=int, default=100_000, metavar="N", help="requests of the first phase")
    parser.add_argument("--mixed", type=int, default=100_000, metavar="N", help="requests of the second phase")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after so long, half of it for each phase")
    parser.add_argument("--clients", type=int, default=32, metavar="N", help="requests at the same time")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the soak and print its report.

    Returns:
        1 if something was found, else 0.
    """
    given = parse(arguments)
    console = Console()
    phases = soak_server(given, console)
    for line in lines(phases):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if given.json:
        given.json.write_text(json.dumps(summary(phases), indent=2) + "\n")
    return 1 if problems(phases) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
