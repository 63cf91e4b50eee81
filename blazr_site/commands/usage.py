"""Run ``blazr usage``: print usage per key, model and day, as a table or as CSV."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.text import Text

from blazr_site.commands.tables import output_console, table
from inference.records.usage_report import csv_chunks, csv_header, tenant_of_key, usage_objects, usage_query

_HEADINGS = {
    "key_name": "name",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "completion_tokens": "output",
    "engine_seconds": "engine s",
    "queue_seconds": "queue s",
    "total_tokens": "total",
    "energy_wh": "energy Wh",
    "energy_cost": "cost",
}
"""Columns without a unit count tokens."""


def run(arguments: argparse.Namespace) -> int:
    """Print the sums."""
    question = usage_query(
        first=arguments.first,
        last=arguments.last,
        group_by=arguments.by,
        tenant=None if arguments.key is None else tenant_of_key(arguments.key),
        model=arguments.model,
    )
    if arguments.csv:
        sys.stdout.writelines(csv_chunks(question))
        return 0
    console = output_console()
    rows = usage_objects(question)
    if not rows:
        console.print(f"Nothing was used from {question.first} to {question.last}.")
        return 0
    known = [name for name in csv_header(question) if any(row[name] is not None for row in rows)]
    headings = {name: _HEADINGS.get(name, name) for name in known}
    numbers = [text for name, text in headings.items() if not isinstance(rows[0][name], str)]
    sums = table(*headings.values(), right=numbers, whole=("day",))
    for row in rows:
        sums.add_row(*(Text(_cell(row[name])) for name in headings))
    console.print(sums)
    return 0


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,}"
