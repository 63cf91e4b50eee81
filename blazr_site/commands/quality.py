"""Run ``blazr quality``: measure the cost of quantised weights and rounded states in perplexity and predictions."""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from blazr_site.commands.loading import inspect_model
from blazr_site.commands.models import progress_bar, resolve_model, stderr
from blazr_site.commands.tables import output_console, table
from inference.demo.corpus import load_documents
from inference.errors import InvalidRequest
from inference.host.units import format_bytes
from inference.llm.loading import choose_device
from inference.llm.options import LLMOptions
from inference.llm.quality import Quality, measure_quality
from inference.llm.state_quality import check_has_states, measure_state_dtype
from inference.modelling.quantisation import QUANTS
from inference.text.tokenisation.tokenizer import load_tokenizer
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection

_MAX_TOKEN_CHARS = 64
"""Characters of --text that are read for each of --tokens. Tokens of text have about four."""


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table or JSON."""
    quants = [part.strip() for part in arguments.quant.split(",")]
    for quant in quants:
        if quant not in QUANTS:
            raise InvalidRequest(f"--quant has {quant[:40]!r}; it must be of {', '.join(QUANTS)}.", param="quant")
    check_windows(arguments)
    if arguments.state_dtype is not None and arguments.against is not None:
        raise InvalidRequest(
            "--state-dtype compares a model with itself, --against with another one; leave one of them out.",
            param="state_dtype",
        )
    inspection = inspect_model(arguments)
    if arguments.state_dtype is not None:
        check_has_states(inspection.spec)
    original = None if arguments.against is None else inspect_in_child(resolve_model(arguments.against))
    if original is not None and original.spec.vocab_size != inspection.spec.vocab_size:
        raise InvalidRequest(
            f"--against {arguments.against[:80]} has {original.spec.vocab_size} tokens, --model "
            f"{inspection.spec.vocab_size}; only checkpoints of one vocabulary can be compared.",
            param="against",
        )
    token_ids, source = text_tokens(inspection, Path(arguments.text) if arguments.text else None, arguments.tokens)
    window = min(arguments.window, inspection.spec.max_position_embeddings)
    options = LLMOptions(device=choose_device(force_cpu=arguments.cpu), dtype=arguments.dtype)
    parts = inspection.spec, [inspection.directory / name for name in inspection.weight_files], token_ids
    with progress_bar("Predicting") as report:
        found = measure_quality(
            *parts,
            quants,
            options=options,
            window=window,
            progress=report,
            reference=None if original is None else (original.spec, original.weight_paths),
        )
    if arguments.state_dtype is not None:
        with progress_bar("Predicting token by token") as report:
            found.append(
                measure_state_dtype(*parts, arguments.state_dtype, options=options, window=window, progress=report)
            )
    if arguments.json:
        result = {"text": source, "window": window, "forms": [asdict(item) for item in found]}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return 0
    stderr.print(Text(f"{found[0].num_tokens} predictions over {source}, windows of {window} tokens", style="dim"))
    _print(found, "none" if original is None else arguments.against)
    return 0


def check_windows(arguments: argparse.Namespace) -> None:
    """Refuse ``--tokens`` and ``--window`` with which nothing is predicted.

    Raises:
        InvalidRequest: One of them is below 2.
    """
    for name in ("tokens", "window"):
        if getattr(arguments, name) < 2:
            raise InvalidRequest(f"--{name} is {getattr(arguments, name)}; it must be at least 2.", param=name)


def text_tokens(inspection: Inspection, path: Path | None, most: int) -> tuple[list[int], str]:
    """Return token ids of a file's text to read, and a description of their source; no file: the help pages."""
    tokenizer_kind = inspection.tokenizer.kind
    if path is None:
        return tokens_to_read(inspection, help_pages() if tokenizer_kind != "none" else None, most)
    return tokens_to_read(inspection, _text(path, most * _MAX_TOKEN_CHARS), most)


def tokens_to_read(inspection: Inspection, text: tuple[str, str] | None, most: int) -> tuple[list[int], str]:
    """Return the first token ids of a text, and its description; None: random tokens.

    Args:
        inspection: Whose tokenizer reads it.
        text: The text, and a description of its source.
        most: Most tokens.

    Raises:
        InvalidRequest: There is a text and no tokenizer.
    """
    tokenizer = load_tokenizer(inspection.tokenizer)
    try:
        if text is not None:
            if not tokenizer.has_text:
                raise InvalidRequest("the checkpoint has no known tokenizer, so --text can't be read; leave it out.")
            return tokenizer.encode(text[0])[:most], text[1]
        usable = [token for token in range(inspection.spec.vocab_size) if not tokenizer.is_missing(token)]
    finally:
        tokenizer.close()
    stderr.print("[yellow]note:[/] no tokenizer is known: random tokens are read, their perplexity means nothing")
    draws = random.Random(0)  # noqa: S311 - the same tokens each time, no secret
    return [draws.choice(usable) for _ in range(most)], "random tokens"


def help_pages() -> tuple[str, str]:
    """The text that is read where none is given."""
    return "\n\n".join(document.text for document in load_documents(0)), "Python's help pages"


def _text(path: Path, max_chars: int) -> tuple[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(max_chars), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--text {str(path)!r} can't be read as UTF-8 text: {error}.", param="text") from None


def _form(item: Quality) -> str:
    return item.quant if item.state_dtype == "float32" else f"{item.state_dtype} states"


def _print(found: list[Quality], first: str) -> None:
    numbers = ("weights", "perplexity", "change", "same first choice", "mean KL (nats)")
    shown = table("form", *numbers, right=numbers)
    for number, item in enumerate(found):
        change = item.perplexity / found[0].perplexity - 1
        cells: list[Any] = [
            _form(item) if number else first,
            format_bytes(item.weights_bytes),
            f"{item.perplexity:.4g}",
            f"{change:+.2%}" if number else "",
            f"{item.top1_agreement:.2%}",
            f"{item.mean_kl:.2e}",
        ]
        shown.add_row(*cells)
    output_console().print(shown)
