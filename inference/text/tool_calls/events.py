"""Events of an OutputParser, and the whole output that they make."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text outside of calls and thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins: its number within the output, its id, the function's name."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments: text whose pieces together are a JSON object, as the model wrote it."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete (or the text has ended inside of it)."""

    index: int


OutputEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


@dataclass(slots=True)
class ToolCall:
    """One whole call; ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedMessage:
    """A whole output. Make it with ``parse_output``, or feed it events with ``add``."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, event: OutputEvent) -> None:
        match event:
            case ContentDelta(text):
                self.content += text
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallStart(_, call_id, name):
                self.tool_calls.append(ToolCall(call_id, name))
            case ToolCallDelta(index, arguments):
                self.tool_calls[index].arguments += arguments
            case ToolCallEnd():
                pass
