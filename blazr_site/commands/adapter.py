"""Run ``blazr adapter``: register, list, load, unload and remove the LoRA adapters of a running server."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.text import Text

from blazr_site.commands.models import stderr
from blazr_site.commands.server import server_with_key
from blazr_site.commands.tables import output_console, table
from blazr_site.server_client import ServerClient
from inference.errors import InvalidRequest, UnknownModel
from inference.host.units import format_bytes

CHECKPOINTS = "/registry/checkpoints"


def run(arguments: argparse.Namespace) -> int:
    """Run the action on the server."""
    with closing(ServerClient(server_with_key(arguments, "blazr adapter"))) as client:
        if arguments.action == "add":
            return _add(client, arguments.model, arguments.path, arguments.name)
        if arguments.action == "list":
            return _list(client, arguments.model, is_json=arguments.json)
        if arguments.action == "remove":
            return _remove(client, arguments.name)
        return _order(client, arguments.name, arguments.action)


def _add(client: ServerClient, model: str, path: str, name: str | None) -> int:
    if Path(path).exists():  # the server is on this machine, and its working directory may be another one
        path = str(Path(path).absolute())
    body = {"path": path} if name is None else {"path": path, "name": name}
    row = client.json("POST", f"{_base(client, model)}/adapters", body)
    stderr.print(f"{client.server.url} has it as {row['model']}", highlight=False, markup=False)
    return 0


def _list(client: ServerClient, model: str | None, *, is_json: bool) -> int:
    bases = [base for _, base in sorted(_bases(client).items())] if model is None else [_base(client, model)]
    rows: list[dict[str, Any]] = []
    for base in bases:
        rows += client.json("GET", f"{base}/adapters")
    if is_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    shown = table("model", "kind", "rank", "size", "state", "in memory", "path", right=("rank", "size"))
    for row in rows:
        texts = (
            row["kind"],
            str(row["rank"]),
            format_bytes(row["size_bytes"]),
            row["state"],
            _memory(row),
            row["path"],
        )
        shown.add_row(Text(row["model"]), *map(Text, texts))
    output_console().print(shown)
    return 0


def _memory(row: dict[str, Any]) -> str:
    """Return what an adapter takes in memory, and what uses it."""
    if row["resident"] is None:
        return "unknown"
    if not row["resident"]:
        return "with its base" if row["pinned"] else "no"
    words = [format_bytes(row["memory_bytes"])]
    words += ["pinned"] if row["pinned"] else []
    words += [f"{row['num_requests']} running"] if row["num_requests"] else []
    return ", ".join(words)


def _order(client: ServerClient, name: str, action: str) -> int:
    row = client.json("POST", f"{_address(client, name)}/{action}")
    if action == "load":
        report = f"has {name} in memory" if row["resident"] else f"will load {name} with its base"
    else:
        report = f"has unloaded {name}"
        if row["resident"]:
            report = "keeps it in memory for another name of the same files"
            if row["num_requests"]:
                report = f"unloads {name} after {row['num_requests']} requests"
    stderr.print(f"{client.server.url} {report}", highlight=False, markup=False)
    return 0


def _remove(client: ServerClient, name: str) -> int:
    client.json("DELETE", _address(client, name))
    stderr.print(f"removed {name}; its files stay", highlight=False, markup=False)
    return 0


def _address(client: ServerClient, name: str) -> str:
    """Path of an adapter's routes."""
    model = name.rpartition(":")[0]
    if not model:
        raise InvalidRequest(f"{name[:120]!r} is no adapter's name; give BASE:NAME, as blazr adapter list shows it.")
    base = _base(client, model)
    key = next((row["id"] for row in client.json("GET", f"{base}/adapters") if row["model"] == name), None)
    if key is None:
        raise UnknownModel(f"{client.server.url} has no adapter {name[:120]!r}; blazr adapter list shows all.")
    return f"{base}/adapters/{key}"


def _bases(client: ServerClient) -> dict[str, str]:
    """Paths of the routes of all checkpoints of the server, by name."""
    return {row["served_model_name"]: f"{CHECKPOINTS}/{row['id']}" for row in client.json("GET", CHECKPOINTS)}


def _base(client: ServerClient, model: str) -> str:
    """Path of a checkpoint's routes."""
    known = _bases(client)
    if model not in known:
        some = ", ".join(sorted(known)[:5]) or "none"
        raise UnknownModel(f"{client.server.url} has no model {model[:120]!r} (it has {some}).")
    return known[model]
