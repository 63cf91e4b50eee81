"""The grammar of an output that has to be, or may hold, well-formed tool calls.

Lark as llguidance reads it, with a JSON schema for the arguments of each function:
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. What it allows is what ``OutputParser`` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequest, UnsupportedFeature
from inference.values.chat_options import ChatOptions
from inference.values.grammar import Grammar
from inference.values.output_format import (
    KIMI_FUNCTION,
    LIST_TAGS,
    MISTRAL_ARGS,
    MISTRAL_CALLS,
    SECTION_MARKS,
    TAGS,
    ToolFormat,
)

MAX_FORCED_CALLS = 32
"""Calls in one output that has to have some: a model that doesn't know when to stop would go on to its limit."""
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python writes JSON, which is what models are trained with."""
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a format writes calls: its mark, around all, between two, and around one's name and arguments.

    Attributes:
        is_numbered: A colon and the number of the call stand behind the name.
    """

    mark: str
    begin: str
    between: str
    end: str
    before_name: str
    before_arguments: str
    after_arguments: str
    is_numbered: bool = False


def _json_shape(start: str, end: str, arguments: str = "arguments") -> tuple[str, str, str]:
    return f'{start}{{"name": "', f'", "{arguments}": ', "}" + end


def _shape(tools: ToolFormat, template: str) -> _Shape:
    match tools:
        case "llama3_json":
            return _Shape("", "", "; ", "", *_json_shape("", "", "parameters"))
        case "nemotron" | "jamba":
            start, end = LIST_TAGS[tools]
            return _Shape(start, f"{start}[", ", ", f"]{end}", *_json_shape("", ""))
        case "mistral" if MISTRAL_ARGS in template:
            return _Shape(MISTRAL_CALLS, "", "", "", MISTRAL_CALLS, MISTRAL_ARGS, "")
        case "mistral":
            return _Shape(MISTRAL_CALLS, f"{MISTRAL_CALLS}[", ", ", "]", *_json_shape("", ""))
        case "deepseek" if "```json" in template:
            marks = SECTION_MARKS[tools]
            one = (f"{marks.call}function{marks.arguments}", "\n```json\n", f"\n```{marks.call_end}")
            return _Shape(marks.begin, marks.begin, "\n", marks.end, *one)
        case "deepseek" | "kimi":
            marks = SECTION_MARKS[tools]
            before_name = marks.call + (KIMI_FUNCTION if tools == "kimi" else "")
            one = (before_name, marks.arguments, marks.call_end)
            return _Shape(marks.begin, marks.begin, "", marks.end, *one, is_numbered=tools == "kimi")
        case "agent":
            return _Shape(TAGS["agent"][0], "", "", "", *_json_shape(*TAGS["agent"], "args"))
        case _:
            start, end = TAGS["hermes"]
            return _Shape(start, "", "\n", "", *_json_shape(f"{start}\n", f"\n{end}"))


Tags = tuple[str, str]


def output_grammar(grammar: Grammar, thinking: Tags) -> Grammar:
    """``grammar``, with a thinking section allowed before it. A client's own Lark grammar stays as it is.

    Args:
        thinking: Marks of the section.
    """
    match grammar.kind:
        case "json_schema" | "json_object":
            body = _json(_schema(grammar))
        case "choice":
            body = " | ".join(map(_text, grammar.value))
        case "regex" if "\n" not in grammar.value:
            body = "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", grammar.value) + "/"
        case _:
            return grammar
    return Grammar("lark", "\n".join([*_start("answer", thinking), f"answer: {body}"]) + "\n", param=grammar.param)


def calls_grammar(
    options: ChatOptions, tools: ToolFormat, template: str, grammar: Grammar | None, thinking: Tags | None = None
) -> Grammar | None:
    """What an output has to be, so that its calls are right; None: ``grammar``, or anything.

    Forced calls are the whole output. Where the model may choose and a function is strict, text is free up to the
    mark of a call, and what follows the mark is a call. With a ``grammar`` in JSON, the output is either that or calls.

    Args:
        tools: The model's format.
        template: Its chat template, which tells versions of a format apart.
        grammar: What ``response_format`` and its like ask for.
        thinking: Marks of a section that may come first; free text holds one anyway.

    Raises:
        InvalidRequest: A function's parameters are no object.
        UnsupportedFeature: A ``grammar`` that isn't JSON beside tools that the model may call.
    """
    if not options.offered:
        return None
    rules = _Rules(_shape(tools, template), options)
    if options.tool_choice in ("required", "named"):
        return rules.grammar(*_start("calls", thinking), rules.calls())
    if grammar is not None:
        if grammar.kind not in ("json_schema", "json_object"):
            raise UnsupportedFeature(
                f"{grammar.param} doesn't go with tools that the model may call; use a JSON schema, leave the tools "
                "out, or set tool_choice.",
                param=grammar.param,
            )
        return rules.grammar(*_start("calls | answer", thinking), f"answer: {_json(_schema(grammar))}", rules.calls())
    if not any(tool["function"].get("strict") for tool in options.offered):
        return None
    if tools == "llama3_json":  # the only mark of a call is that the output begins like one
        return rules.grammar("start: calls | TEXT", r"TEXT: /([^{ \n](.|\n)*)?/", rules.calls())
    return rules.grammar(*rules.calls_in_text())


class _Rules:
    """Writes the rules of one request."""

    def __init__(self, shape: _Shape, options: ChatOptions) -> None:
        self._shape = shape
        self._tools = [tool for tool in options.offered if options.tool_name in (None, tool["function"]["name"])]
        self._has_several = options.parallel and options.tool_choice != "named"

    def grammar(self, *rules: str) -> Grammar:
        """These rules, and those of each function."""
        shape = self._shape
        own: list[str] = ["one: " + " | ".join(f"tool{number}" for number in range(len(self._tools)))]
        for number, tool in enumerate(self._tools):
            name = _text(tool["function"]["name"] + shape.before_arguments)
            if shape.is_numbered:
                name = f"{_text(tool['function']['name'] + ':')} NUMBER {_text(shape.before_arguments)}"
            own.append(f"tool{number}: {name} arguments{number} {_text(shape.after_arguments)}")
            own.append(f"arguments{number}: {_json(_parameters(tool['function']))}")
        own += [r"NUMBER: /[0-9]{1,3}/"] if shape.is_numbered else []
        return Grammar("lark", "\n".join([*rules, *own]) + "\n", param="tools")

    def calls(self, begun: str = "") -> str:
        """The rule for one call or several, behind the text ``begun``."""
        shape = self._shape
        first = (shape.begin + shape.before_name).removeprefix(begun)
        more = ""
        if self._has_several:
            more = f"({_text(shape.between + shape.before_name)} one){{0,{MAX_FORCED_CALLS - 1}}}"
        return f"calls: {_text(first)} one {more} {_text(shape.end)}"

    def calls_in_text(self) -> tuple[str, ...]:
        """Rules for free text with calls in it; the shortest text that ends with the mark of a call is a head."""
        mark = self._shape.mark
        start = "start: (head calls)* TEXT" if self._has_several else "start: head calls | TEXT"
        return (start, f"head[lazy]: TEXT {_text(mark)}", r"TEXT: /(.|\n)*/", self.calls(begun=mark))


def _start(body: str, thinking: Tags | None) -> tuple[str, ...]:
    """The rule ``start``, and those of a thinking section before ``body``."""
    if thinking is None:
        return (f"start: {body}",)
    section = f"thinking[lazy]: {_text(thinking[0])} /(.|\\n)*/ {_text(thinking[1])}"
    return (f"start: (thinking SPACE?)? ({body})", section, r"SPACE: / |\n{1,2}/")


def _schema(grammar: Grammar) -> Mapping[str, Any]:
    if grammar.kind == "json_object":
        return {"type": "object"}
    return grammar.value if isinstance(grammar.value, dict) else {}


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = function.get("parameters", _NO_PARAMETERS)
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"the parameters of the function {function['name']!r} are of the type {str(schema['type'])[:40]!r}; "
            "they must be an object.",
            param="tools",
        )
    return {**schema, "type": "object"}


def _text(text: str) -> str:
    """A Lark string, which is written like one of JSON; nothing for no text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _JSON_STYLE}, ensure_ascii=False)
