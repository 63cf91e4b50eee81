"""OutputFormat: which format a template teaches, and the marks that have to reach the parser."""

from __future__ import annotations

import json

import pytest

from inference.values.output_format import (
    TOOL_FORMATS,
    OutputFormat,
    reasoning_format_of,
    tool_format_of,
    uses_tools,
)
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ tools }} <｜tool▁calls▁begin｜>", "deepseek"),
        ("[TOOL_CALLS]", "mistral"),
        ("<TOOLCALL>", "nemotron"),
        ("<tool_calls>", "jamba"),
        ("<|function|>", "agent"),
        ("<tool_call>", "hermes"),
        ("<tool_call> <function=", "qwen_xml"),
        ("<|python_tag|>", "llama3_json"),
        ('{% if tools %}{"name": 1, "parameters": 2}', "llama3_json"),
        ("plain", "hermes"),
    ],
)
def test_format_of_tool_calls_by_template(template: str, expected: str) -> None:
    assert tool_format_of(template) == expected


def test_whether_a_template_prints_tools() -> None:
    assert uses_tools("{% for tool in tools %}")
    assert not uses_tools("{{ toolset }}")


def test_thinking_by_template_then_by_vocabulary() -> None:
    def spec(name: str, rows: int, template: str | None = None) -> TokenizerSpec:
        return TokenizerSpec("builtin", rows, name=name, chat_template=template)

    rows = VOCABULARIES["llama3"][1]
    assert reasoning_format_of(spec("llama3", rows, "x</think>")) == "think"
    assert reasoning_format_of(spec("llama3", rows)) == "agent"
    assert reasoning_format_of(spec("llama3", rows - 1)) is None
    assert reasoning_format_of(spec("deepseek_v3", 129280)) == "think"
    assert reasoning_format_of(TokenizerSpec("huggingface", 100, path="x")) is None


def test_marks_of_both_parts() -> None:
    assert OutputFormat().marks == ()
    assert OutputFormat("hermes", "think").marks == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    assert all(OutputFormat(name).marks for name in TOOL_FORMATS)


def test_json_round_trip() -> None:
    value = OutputFormat("qwen_xml", "think", ("f",), ("f.p",), parallel=False, include_reasoning=False)
    assert OutputFormat.from_dict(json.loads(json.dumps(value.to_dict()))) == value
