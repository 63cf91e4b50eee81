"""What the methods of ``LLM`` return: whole outputs, and the deltas of a stream. Names are vLLM's where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from inference.text.tool_calls.events import ContentDelta, ParsedMessage, ReasoningDelta, ToolCall
from inference.text.tool_calls.parser import OutputParser, parse_output
from inference.values.messages import GenerationEvent, LogprobEntry, UsageEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice.

    Attributes:
        text: Without thinking and tool calls, where the output of a conversation has them.
        token_ids: All that were generated.
        finish_reason: ``stop``, ``length`` or ``tool_calls``.
        stop_reason: The stop string or token id that ended it.
        reasoning: The thinking.
        tool_calls: Each with ``name`` and ``arguments`` (JSON text).
        logprobs: An entry per token, if ``SamplingParams.logprobs`` is set.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[LogprobEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The output for one prompt.

    Attributes:
        prompt: The text, as it was given or as the chat template made it; None: it was token ids.
        outputs: One per choice (``SamplingParams.n``).
        prompt_logprobs: An entry per token of the prompt, None for the first, if they were wanted.
        usage: Numbers of tokens and durations in seconds.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[LogprobEntry | None] | None
    usage: UsageEvent

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.outputs[0].text


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """More of one choice.

    Attributes:
        text: More of the text; empty where only thinking or usage has come.
        reasoning: More of the thinking.
        finish_reason: In the last delta of a choice.
        tool_calls: In the last delta of a choice: its calls.
        usage: In the last delta of all.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: UsageEvent | None = None


def request_output(builder: OutputBuilder, prompt_text: str | None) -> RequestOutput:
    """Make the output of a plan with one prompt, all of whose events have come."""
    (prompt,) = builder.prompts
    assert prompt.usage is not None
    outputs = []
    for index, choice in enumerate(prompt.choices):
        message = parse_output(builder.plan.output, choice.text, in_reasoning=prompt.in_reasoning)
        outputs.append(
            CompletionOutput(
                index=index,
                text=message.content,
                token_ids=choice.token_ids,
                finish_reason=_finish_reason(choice.finish_reason, message),
                stop_reason=choice.stop_reason,
                reasoning=message.reasoning,
                tool_calls=message.tool_calls,
                logprobs=choice.logprobs,
            )
        )
    return RequestOutput(prompt_text, prompt.prompt_token_ids or [], outputs, prompt.prompt_logprobs, prompt.usage)


class DeltaReader:
    """Turns the events of a plan with one prompt to deltas."""

    def __init__(self, plan: GenerationPlan) -> None:
        self._plan = plan
        self._in_reasoning = False
        self._choices: dict[int, tuple[OutputParser, ParsedMessage]] = {}

    def deltas(self, event: GenerationEvent) -> Iterator[OutputDelta]:
        """Yield what an event adds; a text that may be the beginning of a mark comes later."""
        if event["type"] == "start":
            self._in_reasoning = event.get("in_reasoning", False)
        elif event["type"] == "done":
            yield OutputDelta(usage=event["usage"])
        elif event["type"] == "delta":
            yield self._delta(event)

    def _delta(self, event: GenerationEvent) -> OutputDelta:
        index, finish_reason = event.get("choice", 0), event.get("finish_reason")
        if index not in self._choices:
            self._choices[index] = OutputParser(self._plan.output, in_reasoning=self._in_reasoning), ParsedMessage()
        parser, message = self._choices[index]
        new = ParsedMessage()
        for item in parser.push(event.get("text", "")) + (parser.finish() if finish_reason is not None else []):
            message.add(item)
            if isinstance(item, ContentDelta | ReasoningDelta):  # calls are given whole, in the end
                new.add(item)
        return OutputDelta(
            index=index,
            text=new.content,
            reasoning=new.reasoning,
            token_ids=tuple(event.get("token_ids", ())),
            finish_reason=_finish_reason(finish_reason, message),
            tool_calls=tuple(message.tool_calls) if finish_reason is not None else (),
        )


def _finish_reason(reason: str | None, message: ParsedMessage) -> str | None:
    return "tool_calls" if reason == "stop" and message.tool_calls else reason
