"""Resolve a chat request for one model: prompt, output format, grammar."""

from __future__ import annotations

from dataclasses import replace

from inference.text.tool_calls.grammar import calls_grammar, output_grammar
from inference.text.tool_calls.prompting import with_tools
from inference.values.chat_options import ChatOptions
from inference.values.messages import PromptMessage
from inference.values.output_format import (
    REASONING_FORMATS,
    REASONING_TAGS,
    TOOL_FORMATS,
    OutputFormat,
    ToolFormat,
    reasoning_format_of,
    tool_format_of,
)
from inference.values.plan import GenerationPlan
from inference.values.tokenizer_spec import TokenizerSpec


def resolve(
    plan: GenerationPlan,
    tokenizer: TokenizerSpec,
    *,
    tool_format: str = "auto",
    reasoning_format: str = "auto",
) -> GenerationPlan:
    """The plan for one model; plans of other endpoints, and resolved ones, are as they were.

    Args:
        plan: A checked request.
        tokenizer: The model's, with its template.
        tool_format: A ``ToolFormat``, or auto: what the template says.
        reasoning_format: A ``ReasoningFormat``, auto, or none: thinking isn't split off.

    Raises:
        UnsupportedFeature: The model can't do what was asked for.
    """
    options, template = plan.chat, tokenizer.chat_template
    if options is None or template is None or plan.output is not None:
        return plan
    tools = _tool_format(tool_format, template)
    reasoning = reasoning_format if reasoning_format in REASONING_FORMATS else None
    if reasoning_format == "auto":
        reasoning = reasoning_format_of(tokenizer)
    output = OutputFormat(
        tools=tools if options.offered else None,
        reasoning=reasoning,
        tool_names=options.tool_names,
        json_parameters=options.json_parameters if tools == "qwen_xml" else (),
        parallel=options.parallel,
        include_reasoning=options.include_reasoning,
    )
    prompts = tuple(with_tools(prompt, options, template, tools) for prompt in plan.prompts)
    tags = None if reasoning is None else REASONING_TAGS[reasoning]
    # A vocabulary alone doesn't mean that the model has learnt to think, and to come to an end.
    thinking = tags if tags is not None and tags[1] in template else None
    constraint = plan.params.grammar
    grammar = calls_grammar(options, tools, template, constraint, thinking)
    if grammar is None and constraint is not None:
        grammar = constraint if thinking is None else output_grammar(constraint, thinking)
    if grammar is not None:
        # Thinking that the template has begun goes on before the grammar; whether it has, the worker sees.
        after = None if tags is None else tags[1]
        plan = replace(plan, params=replace(plan.params, grammar=grammar, grammar_after=after))
    is_plain = output.tools is None and output.reasoning is None
    return replace(plan, prompts=prompts, output=None if is_plain else output)


def conversation(
    prompt: PromptMessage, options: ChatOptions, tokenizer: TokenizerSpec, *, tool_format: str = "auto"
) -> PromptMessage:
    """The prompt as ``resolve`` has it, for what only looks at prompts.

    Raises:
        UnsupportedFeature: The template knows nothing of ``reasoning_effort``.
    """
    template = tokenizer.chat_template
    if template is None or "messages" not in prompt:
        return prompt
    return with_tools(prompt, options, template, _tool_format(tool_format, template))


def _tool_format(setting: str, template: str) -> ToolFormat:
    return setting if setting in TOOL_FORMATS else tool_format_of(template)
