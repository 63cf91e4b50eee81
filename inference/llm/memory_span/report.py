"""Write spans as JSON has them, without infinities and with figures of six digits, and as a table of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inference.llm.memory_span.observers import norm_positions
from inference.llm.memory_span.picture import reach, tokens
from inference.llm.memory_span.spans import HeadSpan, MixerSpan
from inference.modelling.specs.parts import Dtype

COLUMNS = ("layer", "kind", "what", "heads", "least", "median", "most", "state_norm")


def as_json(spans: Sequence[MixerSpan], source: str, num_tokens: int, dtype: Dtype) -> dict[str, Any]:
    """Return all figures. A half-life without end is null, beside ``decays: false``.

    Args:
        spans: Of each mixer.
        source: What text was read.
        num_tokens: How much of it.
        dtype: What the network was computed in.
    """
    return {
        "text": source,
        "tokens": num_tokens,
        "dtype": dtype,
        "norm_positions": norm_positions(num_tokens),
        "mixers": [
            {
                "layer": span.layer,
                "kind": span.kind,
                "window": span.window,
                "heads": [_head(head) for head in span.heads],
            }
            for span in spans
        ],
    }


def table_of(spans: Sequence[MixerSpan]) -> list[dict[str, str]]:
    """Return a row of words for each mixer: its heads' least, median and most reach, and the norm of their states."""
    return [_row(span) for span in spans]


def _row(span: MixerSpan) -> dict[str, str]:
    row = dict.fromkeys(COLUMNS, "") | {"layer": str(span.layer), "kind": span.kind}
    if not span.heads:
        return row | {"what": f"reads {span.window}"}
    values = sorted(reach(head) for head in span.heads)
    norms = [head.state_norm for head in span.heads if head.state_norm is not None]
    what = "half-life" if norms else "mean attended distance"
    if not norms and span.window is not None:
        what += f", window {span.window}"
    figures = {"least": values[0], "median": values[len(values) // 2], "most": values[-1]}
    return {
        **row,
        "what": what,
        "heads": str(len(values)),
        **{name: tokens(value) for name, value in figures.items()},
        "state_norm": f"{math.hypot(*norms):.3g}" if norms else "",
    }


def _head(head: HeadSpan) -> dict[str, Any]:
    values = {name: value for name, value in asdict(head).items() if value is not None}
    found: dict[str, Any] = {
        name: [_number(one) for one in value] if isinstance(value, tuple) else _number(value)
        for name, value in values.items()
    }
    if head.half_life is not None:
        found["decays"] = math.isfinite(head.half_life)
    return found


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
