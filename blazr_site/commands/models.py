"""Find the checkpoint of ``--model`` and show progress, for several commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
from inference.errors import InvalidRequest
from models_registry.hub import hub_pull

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
stderr = Console(stderr=True)


def resolve_model(name: str) -> Path:
    """Return the checkpoint's path: the shipped demo, an existing path, or a download from the hub.

    Raises:
        InvalidRequest: The name is no existing path and no hub id.
        BlazrError: The download failed.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name == SERVED_MODEL_NAME:
        return PREBUILT_DIRECTORY
    if HUB_ID.fullmatch(name) and not name.startswith((".", "/")):
        with progress_bar(f"Downloading {name}") as report:
            return hub_pull(name, progress=report)
    raise InvalidRequest(
        f"model {name!r} is neither an existing path nor a HuggingFace id (owner/name); check the spelling.",
        param="model",
    )


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
