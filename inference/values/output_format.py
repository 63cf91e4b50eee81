"""Formats in which models write tool calls and thinking, and which one a checkpoint uses.

Sources: Hermes and Qwen, https://github.com/NousResearch/Hermes-Function-Calling; Llama 3,
https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/; Mistral,
https://docs.mistral.ai/capabilities/function_calling/ and its tokenizers v1 to v13
(https://github.com/mistralai/mistral-common); DeepSeek, the chat templates of
https://huggingface.co/deepseek-ai/DeepSeek-V3.1; Nemotron, https://huggingface.co/nvidia/NVIDIA-Nemotron-Nano-9B-v2;
Jamba, https://huggingface.co/ai21labs/AI21-Jamba-Mini-1.5; Qwen 3 Coder and Nemotron 3,
https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct; Kimi, the tool_call_guidance.md of
https://huggingface.co/moonshotai/Kimi-K2-Instruct; the agent tokens, https://github.com/ml-rust/splintr.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any, Literal, get_args

from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec

ToolFormat = Literal["hermes", "llama3_json", "mistral", "deepseek", "kimi", "nemotron", "jamba", "qwen_xml", "agent"]
ReasoningFormat = Literal["think", "agent", "mistral"]

TOOL_FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)
REASONING_FORMATS: tuple[ReasoningFormat, ...] = get_args(ReasoningFormat)

TAGS: Mapping[str, tuple[str, str]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "agent": ("<|function|>", "<|/function|>"),
    "qwen_xml": ("<tool_call>", "</tool_call>"),
}
"""Begin and end of a call, for the formats that are nothing but a JSON object between two marks. Qwen 3 Coder and its
kin write elements there, of which no JSON is known before they end."""
XML_FUNCTION, XML_FUNCTION_END = "<function=", "</function>"
XML_PARAMETER, XML_PARAMETER_END = "<parameter=", "</parameter>"
LIST_TAGS: Mapping[str, tuple[str, str]] = {
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
    "jamba": ("<tool_calls>", "</tool_calls>"),
}
"""The same for formats with a JSON list of such objects."""
PYTHON_TAG = "<|python_tag|>"
MISTRAL_CALLS, MISTRAL_ARGS, MISTRAL_CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


@dataclass(frozen=True, slots=True)
class SectionMarks:
    """Marks of a format whose calls stand in one section: around it, around each call, and before its arguments."""

    begin: str
    end: str
    call: str
    call_end: str
    arguments: str


SECTION_MARKS: Mapping[Literal["deepseek", "kimi"], SectionMarks] = {
    "deepseek": SectionMarks(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    "kimi": SectionMarks(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
}
KIMI_FUNCTION = "functions."
"""What stands before a function's name in Kimi's calls, and a colon and the number of the call behind it."""

REASONING_TAGS: Mapping[ReasoningFormat, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "agent": ("<|think|>", "<|/think|>"),
    "mistral": ("[THINK]", "[/THINK]"),
}
"""Begin and end of a thinking section."""

_TOOL_MARKS: Mapping[ToolFormat, tuple[str, ...]] = {
    "hermes": TAGS["hermes"],
    "agent": TAGS["agent"],
    "llama3_json": (PYTHON_TAG,),
    "mistral": (MISTRAL_CALLS, MISTRAL_ARGS, MISTRAL_CALL_ID),
    **{name: astuple(marks) for name, marks in SECTION_MARKS.items()},
    "nemotron": LIST_TAGS["nemotron"],
    "jamba": LIST_TAGS["jamba"],
    "qwen_xml": TAGS["qwen_xml"],
}
_USES_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How to read the text of one request.

    Attributes:
        tools: Format of its tool calls; None: none are read.
        reasoning: Format of its thinking; None: none is read.
        tool_names: Functions that may be called. Calls without a mark of their own are told from other JSON by them.
        json_parameters: Parameters, as ``function.parameter``, whose values aren't texts; for formats whose text
            doesn't tell.
        parallel: More than one call per answer; otherwise further ones are left out.
        include_reasoning: The answer shows the thinking.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    tool_names: tuple[str, ...] = ()
    json_parameters: tuple[str, ...] = ()
    parallel: bool = True
    include_reasoning: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that have to reach the parser, even where they are control tokens."""
        tools = () if self.tools is None else _TOOL_MARKS[self.tools]
        return tools + (() if self.reasoning is None else REASONING_TAGS[self.reasoning])

    def to_dict(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> OutputFormat:
        values = {item.name: payload[item.name] for item in fields(cls) if item.name in payload}
        for name in ("tool_names", "json_parameters"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


@functools.lru_cache(maxsize=64)
def uses_tools(template: str) -> bool:
    """Whether a template prints tool definitions."""
    return _USES_TOOLS.search(template) is not None


@functools.lru_cache(maxsize=64)
def tool_format_of(template: str) -> ToolFormat:
    """The format that a chat template teaches; ``hermes`` where it says nothing."""
    if SECTION_MARKS["deepseek"].begin in template:
        return "deepseek"
    if SECTION_MARKS["kimi"].begin in template:
        return "kimi"
    if MISTRAL_CALLS in template:
        return "mistral"
    for name, (start, _) in LIST_TAGS.items():
        if start in template:
            return "nemotron" if name == "nemotron" else "jamba"
    if TAGS["agent"][0] in template:
        return "agent"
    if TAGS["hermes"][0] in template:
        return "qwen_xml" if XML_FUNCTION in template else "hermes"
    if PYTHON_TAG in template or (uses_tools(template) and '"parameters"' in template):
        return "llama3_json"
    return "hermes"


def reasoning_format_of(tokenizer: TokenizerSpec) -> ReasoningFormat | None:
    """The format of a model's thinking: what its template names, else what its vocabulary has tokens for."""
    template = tokenizer.chat_template or ""
    for name, (_, end) in REASONING_TAGS.items():
        if end in template:
            return name
    if tokenizer.kind == "builtin" and tokenizer.name is not None and tokenizer.name in VOCABULARIES:
        if tokenizer.name == "deepseek_v3":
            return "think"  # native tokens of this vocabulary
        if tokenizer.vocab_size >= VOCABULARIES[tokenizer.name][1]:
            return "agent"
    return None
