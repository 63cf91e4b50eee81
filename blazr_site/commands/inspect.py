"""Run ``blazr inspect``: show how far back each layer of a model reaches over a text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.text import Text

from blazr_site.commands.loading import inspect_model
from blazr_site.commands.models import progress_bar, stderr
from blazr_site.commands.quality import text_tokens
from blazr_site.commands.tables import output_console, table
from inference.errors import InvalidRequest
from inference.llm.loading import choose_device, choose_dtype
from inference.llm.memory_span.picture import draw
from inference.llm.memory_span.report import as_json, table_of
from inference.llm.memory_span.spans import MixerSpan, measure_spans
from inference.llm.options import LLMOptions
from inference.values.memory_span import MAX_TOKENS


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table or JSON, and write the picture where one is asked for."""
    if not 2 <= arguments.tokens <= MAX_TOKENS:
        raise InvalidRequest(f"--tokens is {arguments.tokens}; it must be 2 to {MAX_TOKENS}.", param="tokens")
    if not arguments.max_seconds > 0:
        raise InvalidRequest(f"--max-seconds is {arguments.max_seconds:g}; it must be above 0.", param="max_seconds")
    picture = None if arguments.svg is None else Path(arguments.svg)
    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):  # before anything is read
        raise InvalidRequest(f"--svg {str(picture)!r} can't be written: it is no file in a directory.", param="svg")
    inspection = inspect_model(arguments)
    most = min(arguments.tokens, inspection.spec.max_position_embeddings)
    token_ids, source = text_tokens(inspection, None if arguments.text is None else Path(arguments.text), most)
    options = LLMOptions(device=choose_device(force_cpu=arguments.cpu), dtype=arguments.dtype)
    with progress_bar("Reading") as report:
        spans = measure_spans(
            inspection.spec,
            inspection.weight_paths,
            token_ids,
            options=options,
            max_seconds=arguments.max_seconds,
            progress=report,
        )
    if not spans:
        raise InvalidRequest("no layer of this model mixes tokens, so there is nothing to show.", param="model")
    if picture is not None:
        _write(picture, draw(spans, model=arguments.model, num_tokens=len(token_ids)))
    if arguments.json:
        figures = as_json(spans, source, len(token_ids), choose_dtype(inspection.spec, options))
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return 0
    stderr.print(Text(f"{len(token_ids)} tokens of {source}", style="dim"))
    _print(spans)
    return 0


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"--svg {str(path)!r} can't be written: {error.strerror}.", param="svg") from None


def _print(spans: list[MixerSpan]) -> None:
    figures = ("heads", "least", "median", "most", "state norm")
    shown = table("layer", "kind", "what, in tokens", *figures, right=figures)
    for row in table_of(spans):
        shown.add_row(*row.values())
    output_console().print(shown)
