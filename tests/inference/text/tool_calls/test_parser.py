"""A model's text to events: formats, broken calls, and any way of cutting the text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.text.tool_calls.events import ContentDelta, OutputEvent, ParsedMessage, ReasoningDelta, ToolCallDelta
from inference.text.tool_calls.parser import OutputParser, parse_output
from inference.values.output_format import REASONING_TAGS, TOOL_FORMATS, OutputFormat

DEEPSEEK_BEGIN = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI_BEGIN = "<|tool_calls_section_begin|><|tool_call_begin|>"
KIMI_END = "<|tool_call_end|><|tool_calls_section_end|>"

# Per format, how a model writes calls of f({"city": "Köln"}) and g({}).
TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    "agent": '<|function|>{"name": "f", "args": {"city": "Köln"}}<|/function|>'
    '<|function|>{"name": "g", "arguments": {}}<|/function|>',
    "llama3_json": '{"name": "f", "parameters": {"city": "Köln"}}; {"name": "g", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "Köln"}}, {"name": "g", "arguments": {}}]',
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": {"city": "Köln"}}, {"name": "g", "arguments": {}}]</TOOLCALL>',
    "jamba": '<tool_calls>[\n  {"name": "f", "arguments": {"city": "Köln"}},\n  {"name": "g", "arguments": {}}\n]'
    "</tool_calls>",
    "qwen_xml": "<tool_call>\n<function=f>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=g>\n</function>\n</tool_call>",
    "deepseek": DEEPSEEK_BEGIN + 'function<｜tool▁sep｜>f\n```json\n{"city": "Köln"}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```" + DEEPSEEK_END,
    "kimi": KIMI_BEGIN + 'functions.f:0<|tool_call_argument_begin|>{"city": "Köln"}<|tool_call_end|>'
    "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}" + KIMI_END,
}


def output(tools: Any, **options: Any) -> OutputFormat:
    return OutputFormat(tools=tools, tool_names=("f", "g"), json_parameters=("f.n", "f.o"), **options)


def calls(message: ParsedMessage) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def joined(events: list[OutputEvent]) -> list[Any]:
    """Events with neighbouring deltas joined and ids left out: what mustn't depend on the cuts."""
    result: list[list[Any]] = []
    for event in events:
        match event:
            case ReasoningDelta(text) | ContentDelta(text):
                kind = [type(event).__name__]
            case ToolCallDelta(index, text):
                kind = [type(event).__name__, index]
            case _:
                text, kind = "", [type(event).__name__, event.index, getattr(event, "name", None)]
        if result and text and result[-1][:-1] == kind:
            result[-1][-1] += text
        else:
            result.append([*kind, text])
    return result


def read_in_pieces(found: OutputFormat, pieces: list[str]) -> list[OutputEvent]:
    parser = OutputParser(found)
    return [event for piece in pieces for event in parser.push(piece)] + parser.finish()


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_two_calls(name):
    message = parse_output(output(name), TWO_CALLS[name])
    assert calls(message) == [("f", {"city": "Köln"}), ("g", {})]
    assert (message.content, message.reasoning) == ("", "")
    ids = [call.call_id for call in message.tool_calls]
    assert all(item.startswith("call_") for item in ids) and ids[0] != ids[1]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_only_one_call_where_one_is_allowed(name):
    message = parse_output(output(name, parallel=False), TWO_CALLS[name])
    assert calls(message) == [("f", {"city": "Köln"})]


@pytest.mark.parametrize("name", [item for item in TOOL_FORMATS if item != "llama3_json"])
def test_text_before_a_call_is_content(name):
    message = parse_output(output(name), "Let me look.\n\n" + TWO_CALLS[name])
    assert message.content == "Let me look."
    assert len(message.tool_calls) == 2


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', {"a": 1}),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}', {"a": 1}),
        ("mistral", '[TOOL_CALLS]f{"a": 1}', {"a": 1}),
        ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', {"a": 1}),
        ("deepseek", DEEPSEEK_BEGIN + 'f<｜tool▁sep｜>{"a": 1}' + DEEPSEEK_END, {"a": 1}),
        ("kimi", f"{KIMI_BEGIN}\nfunctions.f:12<|tool_call_argument_begin|>\n{{}}\n{KIMI_END}", {}),
        ("kimi", KIMI_BEGIN + 'f<|tool_call_argument_begin|>{"a": 1}' + KIMI_END, {"a": 1}),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ("llama3_json", '<|python_tag|>f.call(query="a \\"b\\"", n=[1, true])', {"query": 'a "b"', "n": [1, True]}),
        ("llama3_json", "<|python_tag|>f.call()", {}),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]', {"a": 1}),
        (
            "qwen_xml",
            "<tool_call><function=f><parameter=a>7</parameter><parameter=n>\n7\n</parameter>"
            '<parameter=o>{"x": [True]}</parameter></function></tool_call>',
            {"a": "7", "n": 7, "o": '{"x": [True]}'},
        ),
        (
            "qwen_xml",
            '<tool_call>\n<function=f>\n<parameter=n>\nTrue\n</parameter>\n<parameter=o>\n{"x": [1]}\n</parameter>\n'
            '<parameter=code>\n\nif a < b:\n    print("</tool_call>")\n\n</parameter>\n</function>\n</tool_call>',
            {"n": True, "o": {"x": [1]}, "code": '\nif a < b:\n    print("</tool_call>")\n'},
        ),
        ("qwen_xml", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', {"a": 1}),
        ("qwen_xml", "<tool_call><function=f><parameter=n>NaN</parameter></function></tool_call>", {"n": "NaN"}),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}]</TOOLCALL>', {"a": 1}),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', {"a": 1}),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', {"a": 1}),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', {}),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', {}),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', {"a": "x\ny"}),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', {"a": "</tool_call>"}),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', {"a": 1}),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', {"a": 1}),
    ],
)
def test_forms_of_one_call(name, text, arguments):
    message = parse_output(output(name), text)
    assert calls(message) == [("f", arguments)]
    assert message.content == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>{bad}</tool_call>"),
        ("hermes", "<tool_call>{'name': 'f'}</tool_call> and more"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {bad}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "argu'),
        ("hermes", "a < b and a <tool"),
        ("hermes", f'<tool_call>{{"name": "{"f" * 300}"}}</tool_call>'),
        ("agent", "<|function|>none<|/function|>"),
        ("llama3_json", '{"city": "Köln"}'),
        ("llama3_json", '{"name": "someone else", "parameters": {}}'),
        ("llama3_json", "<|python_tag|>import os\nprint(os)"),
        ("llama3_json", 'The call is {"name": "f", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] []"),
        ("nemotron", "<TOOLCALL>f(1)</TOOLCALL>"),
        ("jamba", "<tool_calls>[]</tool_calls>"),
        ("qwen_xml", "<tool_call><function=f>text</function></tool_call>"),
        ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\nfor ever"),
        ("qwen_xml", "<tool_call><form>"),
        ("mistral", "[TOOL_CALLS] later"),
        ("deepseek", "<｜tool▁calls▁begin｜>nothing"),
        ("deepseek", DEEPSEEK_BEGIN + "f<｜tool▁sep｜>none" + DEEPSEEK_END),
        ("kimi", "<|tool_calls_section_begin|>nothing"),
        ("kimi", KIMI_BEGIN + "functions.f:0<|tool_call_argument_begin|>none" + KIMI_END),
    ],
)
def test_what_is_no_call_stays_content(name, text):
    message = parse_output(output(name), text)
    assert message.content == text
    assert message.tool_calls == []


def test_a_call_behind_a_broken_one_is_found():
    text = "<tool_call>{oops}</tool_call>" + TWO_CALLS["hermes"]
    message = parse_output(output("hermes"), text)
    assert message.content == "<tool_call>{oops}</tool_call>"
    assert calls(message) == [("f", {"city": "Köln"}), ("g", {})]


def test_arguments_that_break_later_stay_with_their_call():
    text = '<tool_call>{"name": "f", "arguments": {"a": 1 oops}}</tool_call> done'
    message = parse_output(output("hermes"), text)
    assert message.tool_calls[0].arguments == '{"a": 1 oops}}'
    assert message.content == "done"


def test_members_behind_the_arguments_stay_visible_when_unreadable():
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}, oops}</tool_call>'
    message = parse_output(output("hermes"), text)
    assert calls(message) == [("f", {"a": 1})]
    assert message.content == ", oops}</tool_call>"


def test_arguments_stream_while_they_come():
    parser = OutputParser(output("hermes"))
    seen = parser.push('<tool_call>{"name": "f", "arguments": {"text": "one ')
    assert joined(seen) == [["ToolCallStart", 0, "f", ""], ["ToolCallDelta", 0, '{"text": "one ']]
    assert joined(parser.push("two ")) == [["ToolCallDelta", 0, "two "]]


def test_text_that_can_be_no_mark_is_not_held():
    parser = OutputParser(output("hermes"))
    assert joined(parser.push("a <")) == [["ContentDelta", "a"]]
    assert joined(parser.push("b")) == [["ContentDelta", " <b"]]


@pytest.mark.parametrize("reasoning", REASONING_TAGS)
@pytest.mark.parametrize("tools", [None, *TOOL_FORMATS])
def test_thinking_comes_first(reasoning, tools):
    start, end = REASONING_TAGS[reasoning]
    answer = "It is." if tools is None else TWO_CALLS[tools]
    for text, is_open in ((f"\n{start}\nIs it?\n{end}\n\n{answer}", False), (f"\nIs it?\n{end}\n\n{answer}", True)):
        message = parse_output(output(tools, reasoning=reasoning), text, in_reasoning=is_open)
        assert message.reasoning == "Is it?"
        assert message.content == ("" if tools else "It is.")
        assert len(message.tool_calls) == (2 if tools else 0)


def test_thinking_that_does_not_end():
    message = parse_output(OutputFormat(reasoning="think"), "<think>on and on </thi")
    assert (message.reasoning, message.content) == ("on and on </thi", "")


def test_thinking_can_be_left_out():
    found = OutputFormat(reasoning="think", include_reasoning=False)
    message = parse_output(found, "<think>secret</think>open")
    assert (message.reasoning, message.content) == ("", "open")


def test_marks_of_thinking_inside_an_answer_are_text():
    text = "Write <think> and </think>."
    assert parse_output(OutputFormat(reasoning="think"), text).content == text


def test_calls_inside_thinking_are_thoughts():
    found = output("hermes", reasoning="think")
    message = parse_output(found, f"<think>{TWO_CALLS['hermes']}</think>No.")
    assert message.tool_calls == [] and message.content == "No."


def test_without_formats_the_text_is_the_content():
    text = " \n<think>a</think>" + TWO_CALLS["hermes"] + " \n"
    assert parse_output(None, text).content == text


_PARTS = [
    *TWO_CALLS.values(),
    *(tag for tags in REASONING_TAGS.values() for tag in tags),
    "<tool_call>",
    '{"name": "f", "arguments": {"a": [1, "x"]}}',
    '{"name": "f", ',
    '"parameters": {"b": null}',
    "</tool_call>",
    "[TOOL_CALLS]",
    "f[ARGS]",
    "<|python_tag|>",
    "f.call(a=1)",
    "<function=f>",
    "<parameter=n>1",
    "</parameter>",
    "</function>",
    DEEPSEEK_BEGIN,
    "f<｜tool▁sep｜>",
    "{",
    "}",
    ";",
    "\\",
    '"',
    " ",
    "\n",
    "text",
]


@given(
    name=st.sampled_from(TOOL_FORMATS),
    reasoning=st.sampled_from([None, *REASONING_TAGS]),
    parallel=st.booleans(),
    parts=st.lists(st.sampled_from(_PARTS) | st.text(max_size=4), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
@example(name="hermes", reasoning=None, parallel=True, parts=[TWO_CALLS["hermes"]], cuts=[1, 12, 30, 31, 45])
def test_cuts_do_not_show(name, reasoning, parallel, parts, cuts):
    text = "".join(parts)
    found = output(name, reasoning=reasoning, parallel=parallel)
    whole = joined(read_in_pieces(found, [text]))
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[low:high] for low, high in itertools.pairwise(edges)]
    assert joined(read_in_pieces(found, pieces)) == whole
    assert joined(read_in_pieces(found, list(text))) == whole


@given(name=st.sampled_from(TOOL_FORMATS), parts=st.lists(st.sampled_from(_PARTS) | st.text(max_size=4), max_size=8))
def test_text_without_calls_is_kept(name, parts):
    text = "".join(parts)
    message = parse_output(output(name), text)
    if not message.tool_calls:
        assert message.content == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(max_size=5), json_values, max_size=3), ascii_only=st.booleans())
def test_any_arguments_come_through(arguments, ascii_only):
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    forms = {
        "hermes": f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {written}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{written}",
        "deepseek": f"{DEEPSEEK_BEGIN}f<｜tool▁sep｜>{written}{DEEPSEEK_END}",
        "kimi": f"{KIMI_BEGIN}functions.f:0<|tool_call_argument_begin|>{written}{KIMI_END}",
    }
    for name, text in forms.items():
        assert calls(parse_output(output(name), text)) == [("f", arguments)], name


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("hermes", r'<tool_call>{"name": "f\ud800", "arguments": {"n": "\ud800"}}</tool_call>'),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"n\": \"\udfff\"}"}</tool_call>'),
        ("qwen_xml", '<tool_call><function=f><parameter=n>"\\ud800"</parameter></function></tool_call>'),
    ],
)
def test_half_a_pair_of_surrogates_is_no_text_of_a_call(tools: Any, text: str) -> None:
    """No reply could be encoded with it."""
    (call,) = parse_output(output(tools), text).tool_calls
    assert json.loads(call.arguments) == {"n": "\ufffd"}
    assert (call.name + call.arguments).encode()
