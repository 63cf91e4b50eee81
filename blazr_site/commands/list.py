"""Run ``blazr list``: print the registered checkpoints."""

from __future__ import annotations

import argparse

from rich.text import Text

from blazr_site.commands.tables import output_console, table
from inference.host.units import format_bytes, format_count
from inference.models.readable_rows import readable_rows
from models_registry.selectors import checkpoint_list


def run(arguments: argparse.Namespace) -> int:
    """Print one row per checkpoint."""
    rows = readable_rows(checkpoint_list())
    console = output_console()
    if not rows:
        console.print("No checkpoints yet. Try: blazr serve --model PATH, or blazr pull OWNER/NAME")
        return 0
    headings = ("name", "family", "layers", "parameters", "size", "dtype", "state")
    listed = table(*headings, *(["path"] if arguments.verbose else []))
    for row in rows:
        cells = [
            row.served_model_name,
            row.model_type,
            row.architecture,
            format_count(row.num_parameters),
            format_bytes(row.size_bytes),
            row.dtype,
            row.get_state_display(),
        ]
        listed.add_row(*(Text(str(cell)) for cell in cells + ([row.path] if arguments.verbose else [])))
    console.print(listed)
    return 0
