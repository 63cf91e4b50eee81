"""Run ``blazr config``: print the settings in force and the source of each value."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich.text import Text

from blazr_site import settings
from blazr_site.commands.tables import output_console, table
from blazr_site.settings import read, sources
from blazr_site.settings.in_force import InForce, settings_in_force


def run(arguments: argparse.Namespace) -> int:
    """Print a table or JSON; variables without effect are reported on the error stream."""
    rows = [row for _, row in settings_in_force()]
    file = sources.config_file().path
    if arguments.json:
        result = {
            "file": None if file is None else str(file),
            "settings": [asdict(row) for row in rows],
            "models": [asdict(model) for model in settings.BLAZR_MODELS],
            "watched": settings.BLAZR_WATCHED_DIRECTORIES,
        }
        sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(rows)
        output_console().print(Text(f"\nfile: {file}" if file else "\nfile: none"), soft_wrap=True)
    for sentence, advice in read.warnings():
        sys.stderr.write(f"warning: {sentence} {advice}\n")
    return 0


def _print(rows: list[InForce]) -> None:
    shown = table("setting", "value", "from", whole=("setting",))
    for row in rows:
        value = "" if row.value is None else row.value if isinstance(row.value, str) else json.dumps(row.value)
        shown.add_row(Text(row.key), Text(value), Text(f"{row.source}, {row.place}" if row.place else row.source))
    for number, model in enumerate(settings.BLAZR_MODELS):
        shown.add_row(Text(f"models[{number}]"), Text(model.model), Text(_source_of_models()))
    for directory in settings.BLAZR_WATCHED_DIRECTORIES:
        shown.add_row(Text("models, watch"), Text(directory), Text(f"file, {sources.config_file().path}: models"))
    output_console().print(shown)


def _source_of_models() -> str:
    found = sources.find("BLAZR_MODEL")
    return f"file, {sources.config_file().path}: models" if found is None else f"{found.source}, {found.place}"
