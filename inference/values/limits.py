"""Limits of an API key, estimates of what a request uses, and headers. Knows neither Redis nor Django.

Names of the headers and the form of their durations: https://platform.openai.com/docs/guides/rate-limits
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.values.messages import PromptMessage
    from inference.values.plan import GenerationPlan

WINDOW_S = 60.0
"""A bucket that is empty is full again after so long."""
MAX_LIMIT = 10**9

KEPT_FREE_DIVISOR = 4
"""Jobs and lines of batches leave one of so many parts of a key's limits to its interactive requests."""

BYTES_PER_TOKEN = 4
UNSTATED_OUTPUT_TOKENS = 256
"""Expected output of a request without ``max_tokens``; the tokens that were used replace it at the end."""
DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of one caller; None: no limit.

    Attributes:
        requests: Requests per minute.
        tokens: Tokens per minute, of prompts and answers.
        concurrent: Requests that are open at a time.
        lines: Lines of batches (and jobs) that wait or run at a time.
    """

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None
    lines: int | None = None

    def kept_free(self) -> KeyLimits:
        """Return the part of each limit that stored work leaves to interactive requests: a quarter, rounded down."""
        requests, tokens, concurrent = (
            None if limit is None else limit // KEPT_FREE_DIVISOR
            for limit in (self.requests, self.tokens, self.concurrent)
        )
        return KeyLimits(requests, tokens, concurrent)

    @property
    def is_metered(self) -> bool:
        """Whether a request has to be counted at all."""
        return not (self.requests is None and self.tokens is None and self.concurrent is None)


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Budget:
    """State of one bucket after a request was counted.

    Attributes:
        limit: Its size, per minute.
        remaining: What is left of it; below zero when answers were longer than estimated.
        reset_s: Seconds until it is full again.
    """

    limit: int
    remaining: int
    reset_s: float


def budget(limit: int, level: float) -> Budget:
    """The bucket of ``limit`` that holds ``level`` at the moment."""
    return Budget(limit, math.floor(level), max(0.0, (limit - level) * WINDOW_S / limit))


def duration_text(seconds: float) -> str:
    """A duration as OpenAI's headers have it: ``350ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    tenths = math.ceil(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    text = f"{rest / 10:g}s"
    return f"{minutes}m{text}" if minutes else text


def budget_headers(requests: Budget | None, tokens: Budget | None) -> dict[str, str]:
    """``x-ratelimit-*`` of the buckets that there are."""
    headers: dict[str, str] = {}
    for name, found in (("requests", requests), ("tokens", tokens)):
        if found is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(found.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, found.remaining))
            headers[f"x-ratelimit-reset-{name}"] = duration_text(found.reset_s)
    return headers


def estimate_tokens(plan: GenerationPlan) -> int:
    """Tokens that a request is expected to use, without a tokenizer: four bytes of text to a token."""
    prompts = estimate_prompt_tokens(plan)
    if plan.endpoint == "embedding":
        return prompts
    reply = plan.params.max_tokens
    if reply is None:
        reply = DEFAULT_COMPLETION_TOKENS if plan.endpoint == "completion" else UNSTATED_OUTPUT_TOKENS
    return prompts + plan.num_choices * reply


def estimate_prompt_tokens(plan: GenerationPlan) -> int:
    """Tokens that the prompts of a request are expected to have."""
    return sum(plan.state_tokens + _prompt_tokens(prompt) for prompt in plan.prompts)


def _prompt_tokens(prompt: PromptMessage) -> int:
    if "token_ids" in prompt:
        return len(prompt["token_ids"])
    if "inputs" in prompt:
        return sum(_prompt_tokens(item) for item in prompt["inputs"])
    if "messages" in prompt:
        # The template writes its values (tools among them) into the prompt.
        values = prompt.get("template_kwargs")
        tokens = text_tokens(json.dumps(values, default=str)) if values else 0
        return tokens + sum(_message_tokens(message.get("content")) for message in prompt["messages"])
    return text_tokens(prompt.get("text", ""))


def _message_tokens(content: object) -> int:
    parts = content if isinstance(content, list) else [content]
    images: int = sum(part.get("tokens", 0) for part in parts if isinstance(part, dict))
    texts = (part.get("text", "") if isinstance(part, dict) else part for part in parts)
    return 4 + images + sum(text_tokens(text) for text in texts if isinstance(text, str))


def text_tokens(text: str) -> int:
    """About how many tokens ``text`` has."""
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)
