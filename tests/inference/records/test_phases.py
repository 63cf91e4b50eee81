"""The phases of a request add up to its time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.records.phases import PHASES, phases_of, phases_text
from inference.values.output_builder import PromptState

USAGE: Any = {
    "prompt_tokens": 4, "completion_tokens": 9, "cached_tokens": 0, "queue_s": 0.3, "slot_s": 0.4, "ttft_s": 1.2,
    "duration_s": 3.2, "waits": {"swap": 2.0, "load": 1.5, "turn": 0.5, "prepare": 0.2}, "evicted": "other",
}  # fmt: skip


def test_each_measured_phase_has_its_seconds() -> None:
    found = phases_of([PromptState([], usage=USAGE)], duration_s=7.95, delivery_s=0.05)
    expected = {
        "queue": 0.7, "swap": 2.0, "load": 1.5, "turn": 0.5, "prepare": 0.2, "slot": 0.5, "prefill": 0.5, "decode": 2.0,
        "delivery": 0.05,
    }  # fmt: skip
    assert list(found) == list(PHASES) and found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(7.95)


def test_what_was_not_measured_is_not_there() -> None:
    quick = {**USAGE, "waits": {}, "queue_s": 0.0, "slot_s": 0.0, "evicted": ""}
    assert set(phases_of([PromptState([], usage=quick)], duration_s=3.2, delivery_s=0.0)) == {"prefill", "decode"}
    old = {name: value for name, value in USAGE.items() if name != "waits"}
    for prompts in ([PromptState([], usage=old)], [PromptState([])], [PromptState([], usage=USAGE)] * 2):
        assert phases_text(prompts, duration_s=1.0, delivery_s=0.0) == ""


def test_a_row_keeps_the_model_that_evicted() -> None:
    kept = json.loads(phases_text([PromptState([], usage=USAGE)], duration_s=7.95, delivery_s=0.0))
    assert kept["evicted"] == "other" and kept["seconds"]["swap"] == 2.0
