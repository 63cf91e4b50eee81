"""OutputBuilder: collect the events of a request to its output, per prompt and choice.

A queued job that survived a crash replays its stored events into a fresh ``OutputBuilder``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inference.values.messages import GenerationEvent, LogprobEntry, UsageEvent
from inference.values.plan import GenerationPlan


@dataclass(slots=True)
class ChoiceState:
    """One choice so far."""

    text_parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """The text so far, joined (parts grow in constant time, a string would not)."""
        return "".join(self.text_parts)

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token; minus infinity without tokens."""
        found = [entry["logprob"] for entry in self.logprobs]
        return sum(found) / len(found) if found else float("-inf")


@dataclass(slots=True)
class PromptState:
    """One prompt and its choices so far."""

    choices: list[ChoiceState]
    prompt_tokens: int = 0
    prompt_text: str = ""
    in_reasoning: bool = False
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[LogprobEntry | None] | None = None
    usage: UsageEvent | None = None
    embeddings: dict[int, str] = field(default_factory=dict)

    def shown(self, keep: int | None) -> list[ChoiceState]:
        """The choices of the response: all, or those of highest mean log-probability, best first."""
        if keep is None:
            return self.choices
        return sorted(self.choices, key=lambda choice: choice.mean_logprob, reverse=True)[:keep]


class OutputBuilder:
    """Collects the events of one request.

    Args:
        keep_text: Off for streams, which pass text on and only need the counts.
    """

    def __init__(self, plan: GenerationPlan, *, keep_text: bool = True) -> None:
        self.plan = plan
        self.keep_text = keep_text
        self.prompts = [PromptState([ChoiceState() for _ in range(plan.params.n)]) for _ in plan.prompts]
        self.completion_tokens = 0

    def add(self, number: int, event: GenerationEvent) -> None:
        """Take in an event of prompt ``number``."""
        prompt = self.prompts[number]
        if event["type"] == "start":
            prompt.prompt_tokens = event.get("prompt_tokens", prompt.prompt_tokens)
            prompt.in_reasoning = event.get("in_reasoning", prompt.in_reasoning)
        if "prompt_text" in event:
            prompt.prompt_text = event["prompt_text"]
        if "prompt_token_ids" in event:
            prompt.prompt_token_ids = event["prompt_token_ids"]
        if "prompt_logprobs" in event:
            prompt.prompt_logprobs = event["prompt_logprobs"]
        if "embedding" in event:
            prompt.embeddings[event.get("choice", 0)] = event["embedding"]
        elif event["type"] == "delta" and self.plan.embedding is None:
            choice = prompt.choices[event.get("choice", 0)]
            token_ids = event.get("token_ids", [])
            self.completion_tokens += len(token_ids)
            if self.keep_text:
                choice.text_parts.append(event.get("text", ""))
                choice.token_ids += token_ids
                choice.logprobs += event.get("logprobs") or []
            if event.get("finish_reason") is not None:
                choice.finish_reason = event.get("finish_reason")
                choice.stop_reason = event.get("stop_reason")
        elif event["type"] == "done":
            prompt.usage = event.get("usage")

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object; tokens that were cut off with a stop string count too."""
        prompt_tokens = sum(item.prompt_tokens for item in self.prompts)
        if all(item.usage is not None for item in self.prompts):
            completion_tokens = sum(item.usage["completion_tokens"] for item in self.prompts if item.usage)
        else:
            completion_tokens = self.completion_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": self._prompt_tokens_details(),
            **self._completion_tokens_details(),
        }

    def _completion_tokens_details(self) -> dict[str, Any]:
        if self.plan.output is None or self.plan.output.reasoning is None:
            return {}
        return {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}

    def _prompt_tokens_details(self) -> dict[str, Any]:
        reasons = [item.usage.get("cache_miss_reason") for item in self.prompts if item.usage is not None]
        first = next((reason for reason in reasons if reason), None)
        why = {"cache_miss_reason": first} if first else {}
        usages = [item.usage for item in self.prompts if item.usage is not None]
        kept = [prefix for usage in usages for prefix in usage.get("kept_prefixes", ())]
        marked = {"kept_prefixes": kept} if any("kept_prefixes" in usage for usage in usages) else {}
        return {"cached_tokens": self.cached_tokens, **why, **marked}

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose state was found in the prefix cache."""
        return sum(item.usage["cached_tokens"] for item in self.prompts if item.usage is not None)

    @property
    def cache_outcome(self) -> str:
        """``hit``: all but the last token of each prompt was cached; else why not; empty: not known."""
        usages = [item.usage for item in self.prompts if item.usage is not None]
        if len(usages) < len(self.prompts) or not all("cache_miss_reason" in usage for usage in usages):
            return ""
        reasons = (usage.get("cache_miss_reason") for usage in usages)
        return next((reason for reason in reasons if reason), "hit")

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thinking, as far as the requests are done."""
        return sum(item.usage.get("reasoning_tokens", 0) for item in self.prompts if item.usage is not None)

    @property
    def prompt_tokens(self) -> int:
        return sum(item.prompt_tokens for item in self.prompts)

    def delivered(self, number: int) -> list[list[int]]:
        """Token ids per choice of prompt ``number``, for the message of a later attempt."""
        return [list(choice.token_ids) for choice in self.prompts[number].choices]
