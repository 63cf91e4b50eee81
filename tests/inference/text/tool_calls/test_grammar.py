"""Forced and strict calls: what a model writes under the grammar is what the parser reads, at any temperature."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest, UnsupportedFeature
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.text.grammars.rules import source_of
from inference.text.tool_calls.events import ParsedMessage
from inference.text.tool_calls.parser import parse_output
from inference.text.tool_calls.resolution import resolve
from inference.values.chat_options import ChatOptions
from inference.values.grammar import Grammar
from inference.values.output_format import TAGS, TOOL_FORMATS, OutputFormat
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.inspection import inspect_checkpoint

PARAMETERS: dict[str, Any] = {
    "$defs": {"unit": {"enum": ["°C", "°F"]}},
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any = None, **members: Any) -> dict[str, Any]:
    function = {"name": name, **members} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": function}


TOOLS = (tool("weather", PARAMETERS), tool("now"))
SCHEMAS = {"weather": PARAMETERS, "now": {"type": "object", "maxProperties": 0}}
VERSIONS = [(name, "") for name in TOOL_FORMATS] + [("mistral", "[ARGS]"), ("deepseek", "```json")]


def planned(options: ChatOptions, name: str, template: str = "", **params: Any) -> GenerationPlan:
    plan = GenerationPlan(
        endpoint="chat",
        model="demo",
        prompts=({"messages": [{"role": "user", "content": "Is it warm?"}]},),
        params=SamplingParams(**{"max_tokens": 200, "seed": 4, **params}),
        chat=options,
    )
    spec = TokenizerSpec("huggingface", 1024, chat_template=template + "{{ messages }}")
    return resolve(plan, spec, tool_format=name, reasoning_format="none")


def check_calls(message: ParsedMessage) -> None:
    assert message.tool_calls
    for call in message.tool_calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.fixture(scope="module")
def demo() -> Iterator[LLM]:
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    options = LLMOptions(max_model_len=768, max_num_seqs=8, num_threads=1)
    loaded = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    yield loaded
    loaded.close()


def answers(llm: LLM, *plans: GenerationPlan) -> list[list[tuple[str, str]]]:
    """(text, finish_reason) of each choice of each plan, computed together."""
    texts = [[["", ""] for _ in range(plan.params.n)] for plan in plans]
    for number, plan in enumerate(plans):
        message = plan.message(0, request_id=str(number), web_id="", checkpoint_id="", deadline=time.time() + 600)
        llm.add(llm.prepare(message))
    while llm.has_unfinished():
        for event in llm.step():
            assert event["type"] != "error", event
            if event["type"] == "delta":
                choice = texts[int(event["request_id"])][event["choice"]]
                choice[0] += event["text"]
                choice[1] = event.get("finish_reason") or choice[1]
    return [[(text, reason) for text, reason in choices] for choices in texts]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_forced_calls_are_right_in_every_format(demo, temperature):
    options = ChatOptions(tools=TOOLS, tool_choice="required", parallel=False)
    plans = [planned(options, *version, temperature=temperature, n=2) for version in VERSIONS]
    num_ended = 0
    for plan, choices in zip(plans, answers(demo, *plans), strict=True):
        for text, reason in choices:
            message = parse_output(plan.output, text)
            assert reason in ("stop", "length")
            if reason == "stop":
                num_ended += 1
                check_calls(message)
                assert len(message.tool_calls) == 1 and message.content == "", text
    assert num_ended >= len(VERSIONS)


def test_a_named_function_is_the_one_that_is_called(demo):
    plans = [
        planned(ChatOptions(tools=TOOLS, tool_choice="named", tool_name="weather"), name, temperature=1.0)
        for name in TOOL_FORMATS
    ]
    for plan, [(text, reason)] in zip(plans, answers(demo, *plans), strict=True):
        assert reason == "stop"
        message = parse_output(plan.output, text)
        check_calls(message)
        assert [call.name for call in message.tool_calls] == ["weather"]


def accepts(grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), source_of(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "unit": "°C"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def grammar_of(**options: Any) -> Grammar:
    name = options.pop("name", "hermes")
    grammar = planned(ChatOptions(**{"tools": TOOLS, "tool_choice": "auto"} | options), name).params.grammar
    assert grammar is not None
    return grammar


def test_required_calls_are_all_there_is():
    grammar = grammar_of(tool_choice="required")
    assert accepts(grammar, CALL) and accepts(grammar, f"{CALL}\n{NOW}")
    for text in (
        "",
        "It is.",
        f"Well: {CALL}",
        f"{CALL} done",
        CALL.replace("°C", "K"),
        CALL.replace("weather", "wind"),
    ):
        assert not accepts(grammar, text), text
    assert not accepts(grammar_of(tool_choice="required", parallel=False), f"{CALL}\n{NOW}")


def test_strict_functions_leave_text_free():
    tools = (tool("weather", PARAMETERS, strict=True), tool("now"))
    grammar = grammar_of(tools=tools)
    for text in ("", "It is <tool.", CALL, f"Well: {CALL} and {NOW} done"):
        assert accepts(grammar, text), text
    assert not accepts(grammar, "<tool_call>nonsense")
    assert not accepts(grammar, CALL.replace("°C", "K"))
    single = grammar_of(tools=tools, parallel=False)
    assert accepts(single, CALL) and accepts(single, "It is.")
    assert not accepts(single, CALL + CALL)


@pytest.mark.parametrize("version", VERSIONS)
def test_strict_functions_in_every_format(version):
    name, template = version
    tools = (tool("weather", PARAMETERS, strict=True),)
    plan = planned(ChatOptions(tools=tools, tool_choice="auto"), name, template)
    forced = planned(ChatOptions(tools=tools, tool_choice="required", parallel=False), name, template)
    assert plan.params.grammar is not None and forced.params.grammar is not None
    assert accepts(plan.params.grammar, "It is warm.")
    arguments = '{"city": "Köln", "unit": "°C"}'
    named = f'{{"name": "weather", "arguments": {arguments}}}'
    text = {
        ("hermes", ""): f"<tool_call>\n{named}\n</tool_call>",
        ("qwen_xml", ""): f"<tool_call>\n{named}\n</tool_call>",
        ("agent", ""): TAGS["agent"][0] + named.replace('"arguments"', '"args"') + TAGS["agent"][1],
        ("llama3_json", ""): named.replace('"arguments"', '"parameters"'),
        ("mistral", ""): f"[TOOL_CALLS][{named}]",
        ("nemotron", ""): f"<TOOLCALL>[{named}]</TOOLCALL>",
        ("jamba", ""): f"<tool_calls>[{named}]</tool_calls>",
        ("mistral", "[ARGS]"): f"[TOOL_CALLS]weather[ARGS]{arguments}",
        ("deepseek", ""): f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{arguments}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("kimi", ""): "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{arguments}<|tool_call_end|><|tool_calls_section_end|>",
        ("deepseek", "```json"): "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    }[version]
    assert accepts(plan.params.grammar, text)
    assert accepts(forced.params.grammar, text)
    check_calls(parse_output(plan.output, text))


def test_an_answer_in_json_or_calls():
    answer = Grammar("json_schema", {"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}}})
    plan = replace(planned(ChatOptions(), "hermes"), chat=ChatOptions(tools=TOOLS, tool_choice="auto"), output=None)
    plan = replace(plan, params=replace(plan.params, grammar=answer))
    spec = TokenizerSpec("huggingface", 1024, chat_template="{{ messages }}")
    grammar = resolve(plan, spec).params.grammar
    assert grammar is not None
    assert accepts(grammar, '{"a": null}') and accepts(grammar, CALL)
    assert not accepts(grammar, "text") and not accepts(grammar, '{"b": 1}')
    plan = replace(plan, params=replace(plan.params, grammar=Grammar("regex", "a", param="guided_regex")))
    with pytest.raises(UnsupportedFeature, match="guided_regex"):
        resolve(plan, spec)


def test_schemas_tell_which_parameters_are_texts():
    properties = {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "free": {},
        "word": {"enum": ["a"]},
        "number": {"type": ["integer", "null"]},
        "level": {"enum": [1, 2]},
        "object": {"$ref": "#/$defs/o"},
    }
    options = ChatOptions(tools=(tool("f", {"type": "object", "properties": properties}),), tool_choice="auto")
    assert options.json_parameters == ("f.number", "f.level", "f.object")
    output = planned(options, "qwen_xml").output
    assert output is not None and output.json_parameters == options.json_parameters
    assert OutputFormat.from_dict(json.loads(json.dumps(output.to_dict()))) == output


def test_free_tools_leave_the_output_free():
    assert planned(ChatOptions(tools=TOOLS, tool_choice="auto"), "hermes").params.grammar is None
    assert planned(ChatOptions(tools=(tool("f", strict=True),)), "hermes").params.grammar is None


def test_parameters_have_to_be_an_object():
    options = ChatOptions(tools=(tool("f", {"type": "string"}),), tool_choice="required")
    with pytest.raises(InvalidRequest, match="must be an object"):
        planned(options, "hermes")


THINKER = "{{ messages }}{% if enable_thinking %}{% else %}<think></think>{% endif %}"


@pytest.mark.parametrize(
    ("answer", "text", "wrong"),
    [
        (Grammar("json_schema", {"type": "object", "required": ["a"]}), '{"a": 1}', '{"b": 1}'),
        (Grammar("json_object"), '{"a": [1, 2]}', "[1]"),
        (Grammar("choice", ("yes/no", "no")), "yes/no", "maybe"),
        (Grammar("regex", r"a/\\/[0-9]+"), "a/\\/12", "a12"),
        (None, CALL, "It is."),
    ],
)
def test_models_that_think_may_think_first(answer, text, wrong):
    options = ChatOptions(tools=TOOLS, tool_choice="required") if answer is None else ChatOptions()
    plan = planned(ChatOptions(), "hermes")
    plan = replace(plan, chat=options, output=None, params=replace(plan.params, grammar=answer))
    resolved = resolve(plan, TokenizerSpec("huggingface", 1024, chat_template=THINKER))
    grammar = resolved.params.grammar
    assert grammar is not None and resolved.params.grammar_after == "</think>"
    for thought in ("", "<think>\nIs <tool_call> right?\n</think>\n\n", "<think></think>"):
        assert accepts(grammar, thought + text), thought
        assert not accepts(grammar, thought + wrong), thought
    assert not accepts(grammar, "<think>" + text)
    message = parse_output(resolved.output, f"<think>Hm.</think>\n{text}")
    assert message.reasoning == "Hm."
    assert message.content == ("" if answer is None else text)


def test_a_vocabulary_with_marks_alone_does_not_make_a_thinker():
    plan = replace(planned(ChatOptions(), "hermes"), output=None)
    plan = replace(plan, params=replace(plan.params, grammar=Grammar("json_object")))
    spec = TokenizerSpec("builtin", 100331, name="cl100k_base", chat_template="{{ messages }}")
    assert resolve(plan, spec).params.grammar == Grammar("json_object")


def test_a_client_s_own_grammar_is_left_alone():
    own = Grammar("lark", 'start: "a"')
    plan = replace(planned(ChatOptions(), "hermes"), output=None)
    plan = replace(plan, params=replace(plan.params, grammar=own))
    assert resolve(plan, TokenizerSpec("huggingface", 1024, chat_template=THINKER)).params.grammar == own
