"""Write a plan as a body of OpenAI's completions or chat completions, for files of batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.dialects.openai.requests import plan_from_body
from inference.errors import BlazrError, UnsupportedFeature
from inference.values.grammar import Grammar
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan

PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
_GRAMMAR_FIELDS = {
    "json_schema": "guided_json",
    "regex": "guided_regex",
    "lark": "guided_grammar",
    "gbnf": "grammar",
    "choice": "guided_choice",
}


def body_of_plan(plan: GenerationPlan) -> dict[str, Any]:
    """Return a body that ``plan_from_body`` reads as ``plan``.

    Raises:
        UnsupportedFeature: No body means this plan.
    """
    if plan.endpoint not in PATHS or not plan.prompts:
        raise UnsupportedFeature(f"A request of the kind {plan.endpoint!r} can't be a line of a batch.")
    body = {"model": plan.model, **_sampling(plan)}
    body |= _chat(plan) if plan.endpoint == "chat" else _completion(plan)
    if plan.priority:
        body["priority"] = plan.priority
    try:
        found = plan_from_body(plan.endpoint, body)
    except BlazrError as error:
        raise UnsupportedFeature(f"The request can't be a line of a batch: {error.message}") from None
    if found != replace(plan, stream=False, include_usage=False, include_queue=False):
        raise UnsupportedFeature("The request has options that a line of a batch can't have.")
    return body


def _sampling(plan: GenerationPlan) -> dict[str, Any]:
    params = plan.params.to_dict()
    grammar = params.pop("grammar", None)
    if grammar is not None:
        params |= _grammar(Grammar.from_dict(grammar))
    if plan.params.max_tokens is not None:
        params["max_tokens"] = plan.params.max_tokens
    for name in ("stop", "stop_token_ids", "dry_sequence_breakers"):
        if name in params:
            params[name] = list(params[name])
    if params.pop("logprobs", None) is not None:
        params |= {"logprobs": True, "top_logprobs": plan.logprobs} if plan.endpoint == "chat" else {
            "logprobs": plan.logprobs}  # fmt: skip
    return params


def _grammar(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"structured_outputs": {"json_object": True}}
    value = list(grammar.value) if isinstance(grammar.value, tuple) else grammar.value
    return {_GRAMMAR_FIELDS[grammar.kind]: value}


def _chat(plan: GenerationPlan) -> dict[str, Any]:
    prompt, chat = plan.prompts[0], plan.chat
    body: dict[str, Any] = {
        "messages": prompt.get("messages", []),
        "add_generation_prompt": prompt.get("add_generation_prompt", True),
        "continue_final_message": prompt.get("continue_final_message", False),
        "add_special_tokens": prompt.get("add_special_tokens", False),
    }
    if prompt.get("template_kwargs"):
        body["chat_template_kwargs"] = prompt["template_kwargs"]
    if chat is None:
        return body
    if chat.tools:
        named = {"type": "function", "function": {"name": chat.tool_name}}
        body["tools"] = list(chat.tools)
        body["tool_choice"] = named if chat.tool_choice == "named" else chat.tool_choice
    body |= {"parallel_tool_calls": chat.parallel, "include_reasoning": chat.include_reasoning}
    if chat.reasoning_effort is not None:
        body["reasoning_effort"] = chat.reasoning_effort
    return body


def _completion(plan: GenerationPlan) -> dict[str, Any]:
    first: PromptMessage = plan.prompts[0]
    given = [prompt.get("text", prompt.get("token_ids")) for prompt in plan.prompts]
    body: dict[str, Any] = {
        "prompt": given,
        "echo": plan.echo,
        "add_special_tokens": first.get("add_special_tokens", True),
        "parse_special": first.get("parse_special", False),
    }
    if "suffix" in first:
        body["suffix"] = first["suffix"]
    if plan.keep is not None:
        body |= {"n": plan.keep, "best_of": plan.params.n}
    return body
