"""The worker's part: which tokens are thoughts, which control tokens stay text, where a prompt ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from inference.engine.request import EngineOutput, FinishReason
from inference.llm.text_request import RequestPreparer
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.text.tool_calls.reasoning import ReasoningCounter, ReasoningSection, ends_in_section
from inference.values.grammar import Grammar
from inference.values.output_format import reasoning_format_of, tool_format_of, uses_tools
from inference.values.sampling_params import SamplingParams
from inference.values.tokenizer_spec import TokenizerSpec

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|think|>\n{% endif %}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TokenizerSpec("builtin", 100331, name="cl100k_base"))


@pytest.fixture
def preparer(tokenizer: Tokenizer) -> Iterator[RequestPreparer]:
    template = ChatTemplate(TEMPLATE, special_tokens={}, control_tokens=tokenizer.special_tokens, max_model_len=400)
    grammars = GrammarCompiler(tokenizer)
    yield RequestPreparer(tokenizer, template, 1000, grammars)
    grammars.close()
    template.close()


def message(prompt: dict[str, Any], **members: Any) -> Any:
    return {
        "request_id": "a",
        "web_id": "",
        "attempt": 0,
        "model": "",
        "prompt": prompt,
        "params": SamplingParams(seed=1).to_dict(),
        "priority": 0,
        "deadline": time.time() + 60,
        "visible_tokens": ["<|think|>", "<|/think|>", "<|function|>", "<|/function|>"],
        "reasoning_tags": ["<|think|>", "<|/think|>"],
        **members,
    }


def run(preparer: RequestPreparer, tokenizer: Tokenizer, request: Any, text: str) -> list[dict[str, Any]]:
    output = preparer.prepare(request).output
    events: list[Any] = output.begin()
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    for token_id in ids:
        events += output.accept(0, EngineOutput("a", new_token_ids=[token_id]))
    return events + output.accept(0, EngineOutput("a", finish_reason=FinishReason.LENGTH))


def test_control_tokens_that_mark_something_stay_text(preparer, tokenizer):
    text = "Hm.<|/think|><|step|>Yes<|function|>{}<|/function|>"
    events = run(preparer, tokenizer, message({"messages": [{"role": "user", "content": "a"}]}), text)
    assert events[0]["in_reasoning"] is True
    assert "".join(event.get("text", "") for event in events) == text.replace("<|step|>", "")
    thought = tokenizer.encode("Hm.<|/think|>", add_special_tokens=False, parse_special=True)
    assert events[-1]["usage"]["reasoning_tokens"] == len(thought)


def test_other_requests_hide_all_control_tokens(preparer, tokenizer):
    request = message({"text": "a"})
    del request["visible_tokens"], request["reasoning_tags"]
    events = run(preparer, tokenizer, request, "Hm.<|/think|>Yes")
    assert "".join(event.get("text", "") for event in events) == "Hm.Yes"
    assert "in_reasoning" not in events[0] and "reasoning_tokens" not in events[-1]["usage"]


def test_thoughts_of_an_earlier_attempt_count(preparer, tokenizer):
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    request = message({"messages": [{"role": "user", "content": "a"}]}, attempt=1, delivered=[ids])
    events = run(preparer, tokenizer, request, " four<|/think|>Yes")
    assert events[-1]["usage"]["reasoning_tokens"] == len(ids) + 2


@pytest.mark.parametrize("is_open", [True, False])
def test_a_grammar_waits_for_thinking_that_has_begun(preparer, tokenizer, is_open):
    params = SamplingParams(seed=1, grammar=Grammar("choice", ("yes",)), grammar_after="<|/think|>")
    prompt = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": is_open}
    (choice,) = preparer.prepare(message(prompt, params=params.to_dict())).choices
    constraint = choice.constraint
    assert constraint is not None
    (word,) = tokenizer.encode("no", add_special_tokens=False)

    def is_allowed() -> bool:
        mask = constraint.mask()
        return (word in mask.ids) == mask.allows

    assert is_allowed() == is_open
    (end,) = tokenizer.encode("<|/think|>", add_special_tokens=False, parse_special=True)
    if is_open:
        constraint.accept(end)
        assert not is_allowed()


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ({"messages": [{"content": "a"}]}, "a<think>\n", True),
        ({"messages": [{"content": "a"}]}, "a<think>\n\n</think>\n\n", False),
        ({"messages": [{"content": "<think>"}], "add_generation_prompt": False}, "<think>", False),
        ({"messages": [{"content": "<think> so"}], "continue_final_message": True}, "<think> so", True),
        ({"messages": [{"content": "<think>a</think>b"}], "continue_final_message": True}, "", False),
        ({"messages": [{"content": [{"text": "<think>"}]}], "continue_final_message": True}, "", True),
        ({"text": "<think>"}, "<think>", False),
    ],
)
def test_where_a_prompt_ends(prompt, text, expected):
    assert ends_in_section(prompt, text, "<think>", "</think>") is expected


@pytest.mark.parametrize(
    ("pieces", "is_open", "expected"),
    [
        (["<th", "ink>", "a", "b", "</thi", "nk>", "c", "d"], False, 6),
        (["a", "</think>", "b"], True, 2),
        (["a", "b"], False, 0),
        (["\n", "<think>", "a"], False, 3),
        (["", "a", "", "b</think>c", "d"], True, 4),
        (["a <think>", "b"], False, 0),
    ],
)
def test_counting(pieces, is_open, expected):
    counter = ReasoningCounter(ReasoningSection("<think>", "</think>", is_open))
    for piece in pieces:
        counter.push(piece)
    assert counter.num_tokens == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<tool_call><function=", "qwen_xml"),
        ("{{ tools }}<TOOLCALL>", "nemotron"),
        ("{{ tools }}<tool_calls>", "jamba"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek"),
        ("{{ tools }}<|tool_calls_section_begin|>", "kimi"),
        ('{{ tools }}{"name": "f", "parameters": {}}', "llama3_json"),
        ("{{ tools }}<|python_tag|>", "llama3_json"),
        ("{{ tools }}<|function|>", "agent"),
        ("{{ messages }}", "hermes"),
    ],
)
def test_the_template_tells_the_format_of_calls(template, expected):
    assert tool_format_of(template) == expected
    assert uses_tools(template) is ("tools" in template)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TokenizerSpec("huggingface", 1000, chat_template="{% if x %}</think>{% endif %}"), "think"),
        (TokenizerSpec("huggingface", 1000, chat_template="[THINK][/THINK]"), "mistral"),
        (TokenizerSpec("huggingface", 1000, chat_template="{{ messages }}"), None),
        (TokenizerSpec("builtin", 100331, name="cl100k_base"), "agent"),
        (TokenizerSpec("builtin", 100277, name="cl100k_base"), None),
        (TokenizerSpec("builtin", 128815, name="deepseek_v3"), "think"),
    ],
)
def test_template_and_vocabulary_tell_the_marks_of_thinking(spec, expected):
    assert reasoning_format_of(spec) == expected
