"""Outputs and deltas: thinking, calls and text are told apart, whatever the pieces."""

from __future__ import annotations

from typing import Any

import pytest

from inference.llm.outputs import DeltaReader, request_output
from inference.values.output_builder import OutputBuilder
from inference.values.output_format import OutputFormat
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams

TEXT = '<think>hm, so</think>\n\nLook: <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
OUTPUT = OutputFormat(tools="hermes", reasoning="think", tool_names=("look",))
USAGE: Any = {
    "prompt_tokens": 2,
    "completion_tokens": 3,
    "cached_tokens": 0,
    "queue_s": 0,
    "ttft_s": 0,
    "duration_s": 0,
}


def plan(output: OutputFormat | None = OUTPUT, n: int = 1) -> GenerationPlan:
    return GenerationPlan(
        endpoint="chat", model="", prompts=({"messages": []},), params=SamplingParams(n=n), output=output
    )


def events(text: str, size: int, *, in_reasoning: bool = False) -> list[Any]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    deltas: list[Any] = [{"type": "delta", "choice": 0, "text": piece, "token_ids": [7]} for piece in pieces]
    deltas[-1] |= {"finish_reason": "stop", "stop_reason": None}
    start = {"type": "start", "prompt_tokens": 2, "in_reasoning": in_reasoning, "prompt_token_ids": [1, 2]}
    return [start, *deltas, {"type": "done", "usage": USAGE}]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("in_reasoning", [False, True])
def test_thinking_text_and_calls(size: int, in_reasoning: bool) -> None:
    text = TEXT.removeprefix("<think>") if in_reasoning else TEXT
    found = events(text, size, in_reasoning=in_reasoning)
    builder, reader = OutputBuilder(plan()), DeltaReader(plan())
    deltas = []
    for event in found:
        builder.add(0, event)
        deltas += reader.deltas(event)
    whole = request_output(builder, "prompt")
    (choice,) = whole.outputs
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("hm, so", "Look:", "tool_calls")
    (call,) = choice.tool_calls
    assert (call.name, call.arguments) == ("look", '{"at": 1}')
    assert (whole.text, whole.prompt, whole.prompt_token_ids) == ("Look:", "prompt", [1, 2])
    assert "".join(delta.reasoning for delta in deltas) == "hm, so"
    assert "".join(delta.text for delta in deltas) == "Look:"
    assert [delta.finish_reason for delta in deltas][-2:] == ["tool_calls", None]
    assert [call.name for delta in deltas for call in delta.tool_calls] == ["look"]
    assert deltas[-1].usage == USAGE
    assert sum(len(delta.token_ids) for delta in deltas) == len(found) - 2


def test_a_text_without_a_format_stays_as_it_is() -> None:
    reader = DeltaReader(plan(None))
    deltas = [delta for event in events(TEXT, 5) for delta in reader.deltas(event)]
    assert "".join(delta.text for delta in deltas) == TEXT
    assert [delta.finish_reason for delta in deltas][-2:] == ["stop", None]
