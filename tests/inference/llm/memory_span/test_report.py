"""Figures as JSON: what has no end is null, and nothing is lost that was measured."""

from __future__ import annotations

import json
import math

from inference.llm.memory_span.report import COLUMNS, as_json, table_of
from inference.llm.memory_span.spans import HeadSpan, MixerSpan

ENDLESS = HeadSpan(
    half_life=math.inf, half_life_low=2.0, half_life_high=math.inf, state_norm=1 / 3, state_norms=(math.nan, 1 / 3)
)


def test_an_endless_half_life_is_null() -> None:
    found = as_json([MixerSpan(0, "mamba2", (ENDLESS,))], "text", 2, "float32")
    (mixer,) = found["mixers"]
    assert mixer["heads"] == [
        {
            "half_life": None, "half_life_low": 2.0, "half_life_high": None, "state_norm": 0.333333,
            "state_norms": [None, 0.333333], "decays": False,
        }
    ]  # fmt: skip
    assert json.dumps(found, allow_nan=False)


def test_the_positions_of_the_norms_are_named() -> None:
    found = as_json([MixerSpan(1, "attention", (HeadSpan(distance=3.0),), window=8)], "text", 100, "bfloat16")
    assert found["norm_positions"] == [100 * number // 32 for number in range(1, 33)]
    assert (found["text"], found["tokens"], found["dtype"]) == ("text", 100, "bfloat16")
    assert found["mixers"] == [{"layer": 1, "kind": "attention", "window": 8, "heads": [{"distance": 3.0}]}]


def test_a_table_has_a_row_of_words_for_each_mixer() -> None:
    heads = tuple(
        HeadSpan(half_life=life, half_life_low=1.0, half_life_high=life, state_norm=norm, state_norms=(norm,))
        for life, norm in ((math.inf, 3.0), (2.0, 4.0), (50.0, 0.0))
    )
    spans = [
        MixerSpan(0, "mamba2", heads),
        MixerSpan(1, "attention", (HeadSpan(distance=3.25), HeadSpan(distance=1234.0)), window=2048),
        MixerSpan(2, "short_conv", (), window=3),
    ]
    assert [list(row.values()) for row in table_of(spans)] == [
        ["0", "mamba2", "half-life", "3", "2", "50", "never", "5"],
        ["1", "attention", "mean attended distance, window 2048", "2", "3.2", "1,234", "1,234", ""],
        ["2", "short_conv", "reads 3", "", "", "", "", ""],
    ]
    assert [tuple(row) for row in table_of(spans)] == [COLUMNS] * 3
