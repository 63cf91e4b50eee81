"""OutputBuilder: events of a request collected per prompt and choice."""

from __future__ import annotations

import pytest

from inference.values.output_builder import OutputBuilder
from inference.values.output_format import OutputFormat
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams

USAGE = {"prompt_tokens": 3, "completion_tokens": 9, "cached_tokens": 2, "reasoning_tokens": 4}


def builder(n: int = 2, **options: object) -> OutputBuilder:
    keep_text = options.pop("keep_text", True)
    plan = GenerationPlan("completion", "demo", ({"text": "a"},), SamplingParams(n=n), **options)
    return OutputBuilder(plan, keep_text=keep_text)


def delta(choice: int, text: str, *token_ids: int, **more: object) -> dict:
    return {"type": "delta", "choice": choice, "text": text, "token_ids": list(token_ids), **more}


def test_deltas_are_joined_per_choice() -> None:
    found = builder()
    found.add(0, {"type": "start", "prompt_tokens": 3, "prompt_text": "a"})
    found.add(0, delta(0, "x", 1))
    found.add(0, delta(1, "y", 2))
    found.add(0, delta(0, "z", 3, finish_reason="stop", stop_reason="!"))
    first, second = found.prompts[0].choices
    assert (first.text, first.finish_reason, first.stop_reason) == ("xz", "stop", "!")
    assert (second.text, second.finish_reason) == ("y", None)
    assert found.delivered(0) == [[1, 3], [2]]
    assert found.prompts[0].prompt_text == "a"


def test_usage_counts_deltas_until_the_request_is_done() -> None:
    found = builder()
    found.add(0, {"type": "start", "prompt_tokens": 3})
    found.add(0, delta(0, "x", 1, 2))
    assert found.usage()["completion_tokens"] == 2
    found.add(0, {"type": "done", "usage": USAGE | {"cache_miss_reason": "first use"}})
    usage = found.usage()
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 9, 12)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2, "cache_miss_reason": "first use"}
    assert "completion_tokens_details" not in usage


def test_reasoning_tokens_are_reported_where_thinking_is_read() -> None:
    found = builder(output=OutputFormat(reasoning="think"))
    found.add(0, {"type": "done", "usage": USAGE})
    assert found.usage()["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_a_stream_keeps_counts_and_endings_only() -> None:
    found = builder(keep_text=False)
    found.add(0, delta(0, "x", 1, finish_reason="length"))
    choice = found.prompts[0].choices[0]
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("", [], "length")
    assert found.completion_tokens == 1


def test_the_choices_of_highest_mean_log_probability_are_shown_first() -> None:
    found = builder(n=3)
    for choice, logprobs in enumerate(([-2.0, -2.0], [-1.0], [])):
        found.add(0, delta(choice, str(choice), logprobs=[{"logprob": value} for value in logprobs]))
    prompt = found.prompts[0]
    assert [choice.text for choice in prompt.shown(None)] == ["0", "1", "2"]
    assert [choice.text for choice in prompt.shown(2)] == ["1", "0"]


def test_pooled_vectors_are_kept_by_input() -> None:
    options = {"pooling": None, "dimensions": None, "normalize": True, "encoding_format": "float"}
    found = builder(embedding=options)
    found.add(0, delta(1, "", embedding="AAAA"))
    assert found.prompts[0].embeddings == {1: "AAAA"}


@pytest.mark.parametrize(
    ("usages", "outcome"),
    [
        ([USAGE | {"cache_miss_reason": None}] * 2, "hit"),
        ([USAGE | {"cache_miss_reason": None}, USAGE | {"cache_miss_reason": "cold"}], "cold"),
        ([USAGE | {"cache_miss_reason": None}], ""),
        ([USAGE, USAGE], ""),
    ],
    ids=["both whole", "one not", "one isn't done", "vectors say nothing"],
)
def test_what_the_prefix_cache_found(usages: list[dict], outcome: str) -> None:
    found = OutputBuilder(GenerationPlan("completion", "demo", ({"text": "a"}, {"text": "b"}), SamplingParams()))
    for number, usage in enumerate(usages):
        found.add(number, {"type": "done", "usage": usage})
    assert found.cache_outcome == outcome
