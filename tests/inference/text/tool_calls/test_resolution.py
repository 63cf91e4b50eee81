"""A chat plan resolved for one model: prompt, output format, grammar."""

from __future__ import annotations

from inference.text.tool_calls.resolution import conversation, resolve
from inference.values.chat_options import ChatOptions
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.tokenizer_spec import TokenizerSpec

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "hi"}]


def plan(**options: object) -> GenerationPlan:
    return GenerationPlan("chat", "demo", ({"messages": MESSAGES},), SamplingParams(), chat=ChatOptions(**options))


def spec(template: str | None) -> TokenizerSpec:
    return TokenizerSpec("huggingface", 100, path="x", chat_template=template)


def test_plans_without_chat_or_template_and_resolved_ones_stay() -> None:
    bare = GenerationPlan("completion", "demo", ({"text": "a"},), SamplingParams())
    assert resolve(bare, spec("x")) is bare
    asked = plan(tools=(TOOL,), tool_choice="auto")
    assert resolve(asked, spec(None)) is asked
    resolved = resolve(asked, spec("{{ tools }}"))
    assert resolve(resolved, spec("{{ tools }}")) is resolved


def test_a_plain_chat_has_no_output_format() -> None:
    resolved = resolve(plan(), spec("plain"))
    assert resolved.output is None
    assert resolved.params.grammar is None


def test_formats_come_from_the_template_or_from_the_operator() -> None:
    asked = plan(tools=(TOOL,), tool_choice="auto")
    resolved = resolve(asked, spec("[TOOL_CALLS] {{ tools }} </think>"))
    assert (resolved.output.tools, resolved.output.reasoning) == ("mistral", "think")
    assert resolved.output.tool_names == ("f",)
    resolved = resolve(asked, spec("[TOOL_CALLS] </think>"), tool_format="hermes", reasoning_format="none")
    assert (resolved.output.tools, resolved.output.reasoning) == ("hermes", None)


def test_a_required_call_becomes_a_grammar_and_thinking_may_come_before_it() -> None:
    resolved = resolve(plan(tools=(TOOL,), tool_choice="required"), spec("{{ tools }} <tool_call> </think>"))
    assert resolved.params.grammar is not None
    assert resolved.params.grammar_after == "</think>"


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    resolved = resolve(plan(tools=(TOOL,), tool_choice="none"), spec("{{ tools }}"))
    assert resolved.output is None
    assert "template_kwargs" not in resolved.prompts[0]


def test_a_conversation_alone_is_the_prompt_of_the_plan() -> None:
    asked = plan(tools=(TOOL,), tool_choice="auto")
    prompt = conversation(asked.prompts[0], asked.chat, spec("plain"))
    assert prompt == resolve(asked, spec("plain")).prompts[0]
    assert conversation({"text": "a"}, asked.chat, spec("plain")) == {"text": "a"}
