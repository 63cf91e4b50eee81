"""Print tables: folded to the terminal's width for people, unfolded for programs."""

from __future__ import annotations

import shutil
from collections.abc import Collection

from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def output_console() -> Console:
    """Return a console for standard output; output to a pipe or file isn't folded, unless COLUMNS is set."""
    return Console(width=shutil.get_terminal_size((_WIDE, 24)).columns)


def table(*headings: str, right: Collection[str] = (), whole: Collection[str] = (), title: str | None = None) -> Table:
    """Return a table without lines; long cells are folded, never cut.

    Args:
        headings: Headings of the columns.
        right: Headings of columns of numbers.
        whole: Headings of columns that are never folded, because their cells are copied.
        title: Title above the table.
    """
    made = Table(title=title, title_justify="left", box=None)
    for heading in headings:
        made.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="fold",
            no_wrap=heading in whole,
        )
    return made
