"""Run ``blazr state``: save the state after a text, show what a file of one holds, list and load a server's states."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from blazr_site.commands.models import progress_bar, stderr
from blazr_site.commands.tables import output_console, table
from inference.errors import InvalidRequest
from inference.host.units import format_bytes
from inference.llm.state_header import read_state_header

if TYPE_CHECKING:
    from inference.llm.state_file import PromptState

MAX_TEXT_BYTES = 64 << 20


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    if arguments.action == "save":
        return save(arguments)
    if arguments.action == "show":
        return show(arguments)
    # It imports Django's models, which only these actions set up.
    from blazr_site.commands.server_states import list_states, load_state

    return list_states(arguments) if arguments.action == "list" else load_state(arguments)


def save(arguments: argparse.Namespace) -> int:
    """Read a text with ``--model`` and write the state after it; figures go to the error stream."""
    # Both import torch, for which 'show' needn't wait.
    from blazr_site.commands.loading import inspect_to_run, load_to_run
    from inference.llm.state_file import check_target

    output = Path(arguments.output)
    check_target(output)  # before anything is read
    text = arguments.prompt if arguments.text is None else read_text(Path(arguments.text))
    inspection = inspect_to_run(arguments)
    llm = load_to_run(arguments, inspection, max_num_seqs=1)
    try:
        earlier = None if arguments.state is None else llm.read_state(Path(arguments.state))
        started = time.perf_counter()
        with progress_bar("Reading the text") as report:
            state = llm.save_state(text, state=earlier, progress=report)
        seconds = time.perf_counter() - started
        size = llm.write_state(state, output, model=Path(arguments.model).name)
    finally:
        llm.close()
    _print_saved(state, 0 if earlier is None else len(earlier.token_ids), seconds, size, output)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print what a file says of its state; the model isn't needed."""
    path = Path(arguments.file)
    header = read_state_header(path)
    size = path.stat().st_size
    if arguments.json:
        result = {
            "model": header.model,
            "tokens": header.num_tokens,
            "bytes": size,
            "paged_bytes": header.blocks_bytes,
            "recurrent_bytes": header.slot_bytes,
            "created": header.created,
            "digest": header.digest,
            **asdict(header.identity),
        }
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return 0
    identity = header.identity
    shown = table("", "")
    for name, value in (
        ("model", header.model or "not named"),
        ("weights", f"sha256 {identity.weights[:16]}…"),
        ("tokens", f"{header.num_tokens:,}"),
        ("file", f"{format_bytes(size)}, {growth(header.blocks_bytes, header.slot_bytes, header.num_tokens)}"),
        ("saved", f"{header.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("run as", f"{identity.dtype}, quant {identity.quant}, {identity.device}, blocks of {identity.block_size}"),
        ("recurrent parts", identity.state_dtype if header.slot_bytes else "none"),
    ):
        shown.add_row(name, Text(value))  # the file's own words are no markup
    output_console().print(shown)
    return 0


def growth(blocks_bytes: int, slot_bytes: int, num_tokens: int) -> str:
    """Say how a state's size depends on its text."""
    if not blocks_bytes:
        return "which doesn't grow with the text" if slot_bytes else "without any state"
    per_token = format_bytes(blocks_bytes / (num_tokens - 1))
    fixed = f" beside {format_bytes(slot_bytes)} that don't" if slot_bytes else ""
    return f"which grows by {per_token} a token{fixed}"


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        InvalidRequest: It can't be read as such, or is longer than ``MAX_TEXT_BYTES``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
        if len(content) <= MAX_TEXT_BYTES:
            return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--text {str(path)!r} can't be read as UTF-8 text: {error}.", param="text") from None
    raise InvalidRequest(
        f"--text {str(path)!r} has more than {format_bytes(MAX_TEXT_BYTES)}; give a shorter one.", param="text"
    )


def _print_saved(state: PromptState, num_known: int, seconds: float, size: int, output: Path) -> None:
    num_read = len(state.token_ids) - num_known
    saved: Any = state.state
    grows = growth(saved.blocks.nbytes, saved.slot.nbytes, len(state.token_ids))
    stderr.print(
        Text(
            f"{num_read:,} tokens read in {seconds:.1f} s; the state after {len(state.token_ids):,} tokens is in "
            f"{output}: {format_bytes(size)}, {grows}",
            style="dim",
        )
    )
