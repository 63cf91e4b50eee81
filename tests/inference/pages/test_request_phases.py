"""A request's time as a waterfall, and why it was slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from inference.models import UsageRecord
from inference.pages.request_phases import WIDTH, phase_seconds, slow_words, waterfall


def row(seconds: dict[str, float] | None = None, **values: Any) -> UsageRecord:
    evicted = values.pop("evicted", "")
    phases = "" if seconds is None else json.dumps({"seconds": seconds, "evicted": evicted})
    fixed = {"prompt_tokens": 1000, "cached_tokens": 200, "completion_tokens": 50, "duration_s": 4.0}
    return UsageRecord(request_id="a", created_at=timezone.now(), phases=phases, **{**fixed, **values})


def test_the_phases_follow_each_other_and_fill_the_bar() -> None:
    found = waterfall(row({"decode": 2.0, "swap": 1.0, "queue": 1.0}, evicted="other"))
    assert [(item["x"], item["width"]) for item in found] == [(0, 250), (250, 250), (500, 500)]
    assert [item["what"] for item in found][1] == "until other was unloaded"
    assert found[-1]["x"] + found[-1]["width"] == WIDTH


def test_a_row_without_measurements_has_the_phases_that_its_times_give() -> None:
    assert phase_seconds(row(queue_s=1.0, ttft_s=2.0)) == {"queue": 1.0, "prefill": 1.0, "decode": 2.0}
    assert phase_seconds(row(queue_s=9.0)) == {"queue": 4.0, "prefill": 0.0, "decode": 0.0}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"swap": 3.0, "decode": 1.0}, "other had to be unloaded first"),
        ({"load": 3.0, "decode": 1.0}, "wasn't loaded"),
        ({"queue": 1.0, "turn": 1.0, "slot": 1.0, "decode": 1.0}, "Other requests had all places"),
        ({"prefill": 3.0, "decode": 1.0}, "800 tokens of its prompt had to be read, 200 were"),
        ({"prefill": 1.0, "decode": 3.0}, "wrote 50 tokens"),
        ({"decode": 1.0, "delivery": 3.0}, "client read slowly"),
    ],
)
def test_the_longest_phase_is_the_reason(seconds: dict[str, float], words: str) -> None:
    found = slow_words(row(seconds, evicted="other"))
    assert words in found and found.endswith("That took 3.0 of 4.0 s.")


def test_a_quick_request_and_one_without_a_longest_phase_have_no_reason() -> None:
    assert slow_words(row({"decode": 0.9})) == ""
    assert slow_words(row({"swap": 1.0, "load": 1.0, "decode": 1.0})) == ""
