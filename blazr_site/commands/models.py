"""Find the checkpoint of ``--model`` and show progress, for several commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from models_registry import model_paths
from models_registry.detection.printable import printable
from models_registry.hub import ProgressCallback, PullProgress

stderr = Console(stderr=True)


def resolve_model(name: str) -> Path:
    """Return the checkpoint's path, as ``model_paths.resolve_model``; a download shows a progress bar."""
    return model_paths.resolve_model(name, pull_model)


def pull_model(name: str, revision: str | None = None) -> Path:
    """Download a checkpoint, as ``model_paths.pull_model``, with a progress bar; returns its path.

    Where one of several GGUF files is taken, a line says which, and what others there are.
    """

    def show_choice(sentence: str) -> None:
        stderr.print(printable(sentence), highlight=False, markup=False, soft_wrap=True)

    with pull_bar(f"Downloading {name}") as report:
        return model_paths.pull_model(name, revision, report, show_choice)


@contextmanager
def progress_bar(title: str) -> Iterator[Any]:
    """Show a bar on the error stream; yields ``report(share, detail)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=1.0)

        def report(share: float, detail: str = "") -> None:
            bar.update(task, completed=share)

        yield report


@contextmanager
def detailed_bar(title: str) -> Iterator[Any]:
    """Show a bar and what is being done, or in a file a line for each tenth; yields ``report(share, detail)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[note]}"))
    num_tenths = -1
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=1.0, note="")

        def report(share: float, detail: str = "") -> None:
            nonlocal num_tenths
            bar.update(task, completed=share, note=detail)
            if not stderr.is_terminal and int(10 * share) > num_tenths:
                num_tenths = int(10 * share)
                stderr.print(f"{title}: {share:.0%} {detail}", highlight=False, markup=False)

        yield report


@contextmanager
def pull_bar(title: str) -> Iterator[ProgressCallback]:
    """Show the bytes of each file of a pull on the error stream; yields the callback of the pull."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(progress: PullProgress) -> None:
            if progress.file:
                bar.update(
                    task,
                    description=f"{title}: {printable(progress.file)}",
                    completed=progress.done_bytes,
                    total=progress.total_bytes or None,
                )

        yield report


@contextmanager
def step_bar(title: str, total: int) -> Iterator[tuple[Progress, Any]]:
    """Show a bar that counts steps, with a text beside it; yields the bar and its task."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as bar:
        yield bar, bar.add_task(title, total=total, note="")
