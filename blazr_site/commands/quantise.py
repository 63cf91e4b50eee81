"""Run ``blazr quantise``: measure every matrix of a checkpoint, and write it in mixed forms within a limit."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from blazr_site.commands.loading import inspect_model, overrides_from
from blazr_site.commands.models import detailed_bar, stderr
from blazr_site.commands.quality import check_windows, text_tokens
from blazr_site.commands.tables import output_console, table
from inference.errors import InvalidRequest
from inference.host.units import format_bytes
from inference.llm.checkpoint_writing import SHARD_BYTES
from inference.llm.loading import choose_device
from inference.llm.quantising.quantise import Limit, Quantised, quantise_checkpoint, split_text
from inference.llm.quantising.side_files import side_files
from models_registry.detection.facts import CHAT_TEMPLATE, TOKENIZER_FROM

_TEXT_FACTS = (TOKENIZER_FROM, CHAT_TEMPLATE, "vocabulary")
"""Facts whose effect is in the written files."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,3})")


def run(arguments: argparse.Namespace) -> int:
    """Quantise and print the curve as a table or JSON."""
    limit = Limit(parse_size(arguments.bytes), arguments.max_kl)
    shard_bytes = parse_size(arguments.shard_size, "--shard-size") or SHARD_BYTES
    if limit.size_bytes is None and limit.max_kl is None:
        raise InvalidRequest("say how small or how close: --bytes SIZE, --max-kl NATS, or both.", param="bytes")
    if limit.max_kl is not None and not 0 < limit.max_kl < 100:
        raise InvalidRequest(f"--max-kl is {limit.max_kl:g}; it must be above 0 and below 100 nats.", param="max_kl")
    check_windows(arguments)
    inspection = inspect_model(arguments)
    if arguments.correct < 0:
        raise InvalidRequest(f"--correct is {arguments.correct}; it must be at least 0.", param="correct")
    most = arguments.tokens + arguments.correct
    both, text = text_tokens(inspection, Path(arguments.text) if arguments.text else None, most)
    token_ids, calibration = split_text(both, arguments.tokens)
    with _sigterm_as_interrupt(), detailed_bar("Quantising") as report:
        found = quantise_checkpoint(
            inspection.spec,
            inspection.weight_paths,
            side_files(inspection),
            Path(arguments.output),
            token_ids,
            limit,
            text=text,
            window=min(arguments.window, inspection.spec.max_position_embeddings),
            calibration=calibration,
            device=choose_device(force_cpu=arguments.cpu),
            dtype="float32" if arguments.dtype == "auto" else arguments.dtype,
            shard_bytes=shard_bytes,
            with_curve=not arguments.no_curve,
            measurements=Path(arguments.measurements) if arguments.measurements else None,
            progress=report,
        )
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n")
    else:
        _print(found, arguments.output, text)
    left = [f"--override {fact}" for fact in overrides_from(arguments) if fact not in _TEXT_FACTS]
    left += ["--vocab none"] if arguments.vocab == "none" else []
    if left:
        stderr.print(
            f"[yellow]note:[/] {', '.join(left)} isn't written to the output; give it again when you load it.",
            highlight=False,
        )
    return 0


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, so that unfinished files are removed."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def parse_size(value: str | None, option: str = "--bytes") -> int | None:
    """Bytes of a size with a unit; None: none was given.

    Args:
        value: As it was given.
        option: What it was given for, for messages.

    Raises:
        InvalidRequest: It is no size.
    """
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise InvalidRequest(
            f"{option} is {value[:40]!r}; write a number and MB, GB, MiB or GiB, e.g. 4GB.",
            param=option.lstrip("-").replace("-", "_"),
        )
    return size


def _print(found: Quantised, output: str, text: str) -> None:
    numbers = ("weights", "mean KL (nats)", "predicted")
    shown = table("forms", *numbers, right=numbers)
    for point in found.curve:
        is_chosen = point.size_bytes == found.plan.size_bytes and point.mean_kl == found.divergence.mean_kl
        label = ("all " + point.form if point.form else "mixed") + (" (written)" if is_chosen else "")
        shown.add_row(label, format_bytes(point.size_bytes), f"{point.mean_kl:.2e}", f"{point.predicted_kl:.2e}")
    output_console().print(shown)
    is_corrected = found.divergence.mean_kl < found.plain.mean_kl
    plain = f" ({found.plain.mean_kl:.2e} without correction)" if is_corrected else ""
    stderr.print(
        f"Wrote {output}: {format_bytes(found.size_bytes)}, {found.bits_per_weight:.2f} bits per weight, KL "
        f"{found.divergence.mean_kl:.2e} nats{plain}, {found.divergence.top1_agreement:.1%} the same first choice over "
        f"{found.divergence.num_tokens} predictions of {text}.",
        highlight=False,
        markup=False,
    )
