"""Run ``blazr info``: describe a checkpoint layer by layer, with the evidence of each fact."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blazr_site.commands.loading import inspect_model, overrides_from
from blazr_site.commands.set_up import DATA_DIR, DEFAULT_DATA_DIR
from blazr_site.commands.tables import output_console, table
from blazr_site.running_servers import running_servers
from inference.demo.paths import SERVED_MODEL_NAME
from inference.errors import InvalidRequest
from inference.host.confinement import confinement
from inference.host.units import format_bytes, format_count
from models_registry.detection.describe import describe
from models_registry.detection.inspection import Inspection

CONFIDENCE_STYLES = {
    "override": "magenta",
    "certain": "green",
    "high": "green",
    "medium": "yellow",
    "low": "red",
}


def run(arguments: argparse.Namespace) -> int:
    """Print the description as tables or JSON."""
    arguments.model = arguments.model or arguments.name
    if not arguments.model:
        raise InvalidRequest("say which checkpoint: blazr info NAME, a path or a HuggingFace id.", param="model")
    description = describe(_registered(arguments) or inspect_model(arguments))
    if arguments.json:
        sys.stdout.write(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
        return 0
    console = output_console()
    _print_sizes(console, description)
    _print_layers(console, description["layers"])
    _print_facts(console, description["facts"])
    for warning in (*description["warnings"], *confinement().gaps):
        console.print(Text("note: ", style="yellow").append(warning, style="default"))
    return 0


def _registered(arguments: argparse.Namespace) -> Inspection | None:
    """Return what a server has stored of a model that it has registered under this name; None: it is no such name.

    Raises:
        InvalidRequest: ``--data-dir`` names a directory without a model of this name.
    """
    name = arguments.model
    named = getattr(arguments, DATA_DIR, None)
    if named:
        return _stored_there(name, Path(named).expanduser().absolute(), arguments)
    if Path(name).expanduser().exists() or name == SERVED_MODEL_NAME or overrides_from(arguments):
        return None
    default = Path(DEFAULT_DATA_DIR).absolute()
    given = os.environ.get(DATA_DIR)
    places = (
        [Path(given)] if given else list(dict.fromkeys([*running_servers(), *([default] if default.is_dir() else [])]))
    )
    for place in places:
        if (inspection := _stored(name, place)) is not None:
            return inspection
    return None


def _stored_there(name: str, data_dir: Path, arguments: argparse.Namespace) -> Inspection:
    if not data_dir.is_dir():
        raise InvalidRequest(f"--data-dir {str(data_dir)[:300]} is no directory.", param="data_dir")
    if overrides_from(arguments):
        raise InvalidRequest("facts are set by hand for a path; leave --data-dir out.", param="data_dir")
    inspection = _stored(name, data_dir)
    if inspection is None:
        raise InvalidRequest(
            f"no model {name[:120]!r} is registered in {str(data_dir)[:300]}; blazr list --data-dir DIR shows all.",
            param="model",
        )
    return inspection


def _stored(name: str, data_dir: Path) -> Inspection | None:
    """Ask the database of a data directory, in a process of its own: settings are read once per process."""
    environment = {**os.environ, DATA_DIR: str(data_dir), "DJANGO_SETTINGS_MODULE": "blazr_site.settings"}
    code = (
        "import json, sys, django; django.setup(); from models_registry.models import Checkpoint;"
        "row = Checkpoint.objects.filter(served_model_name=sys.argv[1]).values_list('inspection', flat=True).first();"
        "json.dump(row, sys.stdout)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(  # noqa: S603 - our own interpreter, and a name as an argument
        [sys.executable, "-c", code, name], env=environment, cwd=root, capture_output=True, text=True, timeout=60
    )
    found = json.loads(done.stdout) if done.returncode == 0 and done.stdout else None
    return None if found is None else Inspection.from_dict(found)


def _print_sizes(console: Console, description: Mapping[str, Any]) -> None:
    sizes, state = Table(show_header=False, box=None), description["state_bytes_per_sequence"]
    for label, value in (
        ("format", description["format"]),
        ("family", description["model_type"]),
        ("stored dtype", description["dtype"]),
        ("parameters", format_count(description["num_parameters"])),
        ("size on disk", format_bytes(description["size_bytes"])),
        ("hidden size", description["hidden_size"]),
        ("vocabulary rows", f"{description['vocab_size']:,}"),
        ("context", f"{description['max_position_embeddings']:,} tokens"),
        ("state per token", format_bytes(description["state_bytes_per_token"])),
        ("state per sequence", f"{format_bytes(state)}{' in float32' if state else ''}"),
    ):
        sizes.add_row(Text(label, style="dim"), Text(str(value)))
    console.print(sizes)


def _print_layers(console: Console, layers: Sequence[Mapping[str, Any]]) -> None:
    rows = table("layer", "kind", "sizes", "parameters", right=("parameters",), title="Layers")
    # Equal neighbouring layers share a row, so that a 40-layer model needs few rows.
    start = 0
    for stop in range(1, len(layers) + 1):
        first = layers[start]
        if stop < len(layers) and _same(first, layers[stop]):
            continue
        number = str(start) if stop - start == 1 else f"{start}-{stop - 1}"
        sizes = ", ".join(f"{key} {value}" for key, value in first["sizes"].items())
        rows.add_row(number, first["kind"], Text(sizes), f"{first['num_parameters']:,}")
        start = stop
    console.print(rows)


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(first[key] == second[key] for key in ("kind", "sizes", "num_parameters"))


def _print_facts(console: Console, facts: Sequence[Mapping[str, Any]]) -> None:
    rows = table("fact", "value", "confidence", "evidence", title="Detected facts")
    for fact in facts:
        confidence = str(fact["confidence"])
        rows.add_row(
            Text(fact["name"]),
            Text(str(fact["value"])),
            Text(confidence, style=CONFIDENCE_STYLES.get(confidence, "default")),
            Text(fact["evidence"]),
        )
    console.print(rows)
