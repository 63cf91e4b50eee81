"""Run ``blazr search``: find models on the HuggingFace hub."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich.text import Text

from blazr_site.commands.tables import output_console, table
from inference.host.units import format_count
from models_registry.detection.printable import printable
from models_registry.hub_preview import hub_search


def run(arguments: argparse.Namespace) -> int:
    """Print a row per model, the most downloaded first; exit code 1 if there is none."""
    found = hub_search(arguments.text, arguments.limit)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(model) for model in found], indent=2) + "\n")
        return 0 if found else 1
    console = output_console()
    if not found:
        console.print("The hub has no such model.")
        return 1
    listed = table("model", "downloads", "likes", "updated", "formats", right=("downloads", "likes"), whole=("model",))
    for model in found:
        formats = ", ".join(model.formats) + (" (gated)" if model.is_gated else "")
        cells = (model.repo_id, format_count(model.downloads), str(model.likes), model.updated, formats)
        listed.add_row(*(Text(printable(cell), style="" if model.can_be_pulled else "dim") for cell in cells))
    console.print(listed)
    return 0
