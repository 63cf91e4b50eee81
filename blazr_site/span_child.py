"""Measure how far back a checkpoint's layers reach, as the child process of a job (``job_child``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blazr_site.commands.quality import tokens_to_read
from blazr_site.job_child import device_and_dtype, run
from inference.errors import InvalidRequest
from inference.llm.memory_span.picture import draw
from inference.llm.memory_span.report import as_json, table_of
from inference.llm.memory_span.spans import Progress, measure_spans, measuring_bytes
from inference.llm.options import LLMOptions
from models_registry.detection.child import inspect_in_child


def measure(
    *,
    path: str,
    overrides: Mapping[str, Any],
    model: str,
    text: str,
    max_tokens: int,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """Read a text as ``blazr inspect`` does; return its figures, a table and a picture.

    Args:
        path: The checkpoint.
        overrides: Facts that count instead of detected ones.
        model: Name for the picture.
        text: What is read; empty: random tokens, for a checkpoint without a tokenizer.
        max_tokens: Tokens of it that are read.
        device: As BLAZR_DEVICE has it.
        progress: Called with the share done and a description of the present work.

    Raises:
        BlazrError: The checkpoint or the text can't be read.
    """
    progress(0.0, "inspecting")
    inspection = inspect_in_child(Path(path), overrides)
    spec = inspection.spec
    most = min(max_tokens, spec.max_position_embeddings)
    token_ids, source = tokens_to_read(inspection, (text, "a text") if text else None, most)
    where, dtype = device_and_dtype(
        device,
        lambda dtype: measuring_bytes(spec, len(token_ids), dtype),
        "unload models, read fewer tokens, or run blazr inspect on a larger machine",
    )
    progress(0.0, "loading weights")
    spans = measure_spans(
        spec, inspection.weight_paths, token_ids, options=LLMOptions(device=where, dtype=dtype), progress=progress
    )
    if not spans:
        raise InvalidRequest("no layer of this model mixes tokens, so there is nothing to show.", param="checkpoint")
    return {
        "figures": as_json(spans, source, len(token_ids), dtype),
        "table": table_of(spans),
        "picture": draw(spans, model=model, num_tokens=len(token_ids)),
    }


if __name__ == "__main__":
    run(measure)
