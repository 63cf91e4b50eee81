"""``blazr quality``: what quantising a model costs, in perplexity and in predictions that change."""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blazr_site.commands.models import add_model_arguments, choose_device, inspect_model, progress_bar, stderr
from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from inference.llm.quality import Quality
    from models_registry.detection.inspection import Inspection

HELP = "show what quantisation costs: perplexity and changed predictions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_arguments(parser)
    parser.add_argument("--quant", default="int8,int4", help="forms to compare, with commas (default int8,int4)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text (default: Python's own help pages)")
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help="most tokens to read (default 2048)")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens read in one go (default 512)")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table or JSON."""
    from inference.llm.options import LLMOptions
    from inference.llm.quality import measure_quality
    from inference.modelling.quantisation import QUANTS

    quants = [part.strip() for part in arguments.quant.split(",")]
    for quant in quants:
        if quant not in QUANTS:
            raise InvalidRequest(f"--quant has {quant[:40]!r}; it must be of {', '.join(QUANTS)}.", param="quant")
    for name in ("tokens", "window"):
        if getattr(arguments, name) < 2:
            raise InvalidRequest(f"--{name} is {getattr(arguments, name)}; it must be at least 2.", param=name)
    inspection = inspect_model(arguments)
    token_ids, source = _tokens(inspection, arguments.text, arguments.tokens)
    window = min(arguments.window, inspection.spec.max_position_embeddings)
    options = LLMOptions(device=choose_device(force_cpu=arguments.cpu), dtype=arguments.dtype)
    with progress_bar("Predicting") as report:
        found = measure_quality(
            inspection.spec,
            [inspection.directory / name for name in inspection.weight_files],
            token_ids,
            quants,
            options=options,
            window=window,
            progress=report,
        )
    if arguments.json:
        result = {"text": source, "window": window, "forms": [asdict(item) for item in found]}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return 0
    stderr.print(
        f"[dim]{found[0].num_tokens} predictions over {source}, windows of {window} tokens[/]", highlight=False
    )
    _print(found)
    return 0


def _tokens(inspection: Inspection, path: Path | None, most: int) -> tuple[list[int], str]:
    """Token ids to read, and what they are in words."""
    from inference.text.tokenisation.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(inspection.tokenizer)
    try:
        if tokenizer.has_text:
            text, source = _text(path)
            return tokenizer.encode(text)[:most], source
        if path is not None:
            raise InvalidRequest("the checkpoint has no known tokenizer, so --text can't be read; leave it out.")
        usable = [token for token in range(inspection.spec.vocab_size) if not tokenizer.is_missing(token)]
    finally:
        tokenizer.close()
    stderr.print("[yellow]note:[/] no tokenizer is known: random tokens are read, their perplexity means nothing")
    draws = random.Random(0)
    return [draws.choice(usable) for _ in range(most)], "random tokens"


def _text(path: Path | None) -> tuple[str, str]:
    if path is None:
        from inference.demo.corpus import load_documents

        return "\n\n".join(document.text for document in load_documents(0)), "Python's help pages"
    try:
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--text {str(path)!r} can't be read as UTF-8 text: {error}.", param="text") from None


def _print(found: list[Quality]) -> None:
    from blazr_site.commands.tables import output_console, table
    from inference.host.units import format_bytes

    numbers = ("weights", "perplexity", "change", "same first choice", "mean KL (nats)")
    shown = table("form", *numbers, right=numbers)
    for item in found:
        change = item.perplexity / found[0].perplexity - 1
        cells: list[Any] = [
            item.quant,
            format_bytes(item.weights_bytes),
            f"{item.perplexity:.4g}",
            "" if item.quant == "none" else f"{change:+.2%}",
            f"{item.top1_agreement:.2%}",
            f"{item.mean_kl:.2e}",
        ]
        shown.add_row(*cells)
    output_console().print(shown)
