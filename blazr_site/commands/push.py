"""Run ``blazr push``: upload a checkpoint to a server, with a progress bar; a second run goes on after an interrupt."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from blazr_site.commands.models import stderr
from blazr_site.commands.server import server_with_key
from blazr_site.pushing import Push, files_to_push, with_digests
from blazr_site.server_client import ServerClient
from models_registry.detection.printable import printable


def run(arguments: argparse.Namespace) -> int:
    """Upload, and print the name under which the server has the model."""
    place = Path(arguments.dir).expanduser()
    files, omitted = files_to_push(place)
    server = server_with_key(arguments, "a push")
    if omitted:
        stderr.print(f"left out: {printable(', '.join(omitted))}", style="dim", highlight=False, markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=printable(stage), completed=done, total=total)

        with closing(ServerClient(server)) as client:
            push = Push(client, with_digests(files, report), name=arguments.name or "", label=place.resolve().name)
            try:
                upload = push.run(report)
            except KeyboardInterrupt:
                stderr.print("interrupted; the same command goes on from here, within an hour", style="dim")
                raise
    name = printable(str(upload["served_model_name"]))
    stderr.print(f"{server.url} has it as {name}", highlight=False, markup=False)
    return 0
