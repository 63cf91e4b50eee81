"""Tables on standard output: within a terminal's width for people, whole for programs that read them."""

from __future__ import annotations

import shutil
from collections.abc import Collection

from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def output_console() -> Console:
    """Standard output. Into a pipe or a file nothing is folded, unless COLUMNS says how much room there is."""
    return Console(width=shutil.get_terminal_size((_WIDE, 24)).columns)


def table(*headings: str, right: Collection[str] = (), whole: Collection[str] = (), title: str | None = None) -> Table:
    """A table without lines; what doesn't fit into a terminal is folded, never cut.

    Args:
        headings: Of its columns.
        right: Those whose cells are numbers.
        whole: Those whose cells are never folded, because they have to be copied or read at a glance.
        title: Above it.
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
