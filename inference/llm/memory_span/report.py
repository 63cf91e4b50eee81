"""Write spans as JSON has them: without infinities, with figures of six digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inference.llm.memory_span.observers import norm_positions
from inference.llm.memory_span.spans import HeadSpan, MixerSpan


def as_json(spans: Sequence[MixerSpan], source: str, num_tokens: int) -> dict[str, Any]:
    """Return all figures. A half-life without end is null, beside ``decays: false``.

    Args:
        spans: Of each mixer.
        source: What text was read.
        num_tokens: How much of it.
    """
    return {
        "text": source,
        "tokens": num_tokens,
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
