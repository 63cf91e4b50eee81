"""Log a line per request, record contents where configured, and remove old records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from inference.models import UsageRecord
from inference.records.usage import Usage
from inference.text.tool_calls.parser import parse_output
from inference.values.images import bare_images
from inference.values.messages import PromptMessage
from inference.values.output_builder import ChoiceState, OutputBuilder, PromptState
from inference.values.plan import GenerationPlan

logger = logging.getLogger(__name__)

SWEEP_BATCH = 500
MAX_CHARS = 20_000
"""Maximum characters of a prompt, and of an output, in a row."""
CUT_MARK = "…"
"""The last character of what was cut."""


def contents_are_logged() -> bool:
    """Whether prompts and outputs are recorded (BLAZR_LOG_REQUESTS=contents)."""
    return bool(settings.BLAZR_REQUEST_LOG_CONTENTS)


def logged_contents(builder: OutputBuilder, original: GenerationPlan | None = None) -> dict[str, Any]:
    """Return ``prompt`` and ``output`` of a record as JSON, each cut to ``MAX_CHARS``; empty unless configured.

    The output is a list with the ``logged_text`` of each choice that the response shows.

    Args:
        original: The request as it came, before anything of its model was filled in; recorded beside its prompts as
            ``plan``, so that it can be replayed. None: it can't.
    """
    if not contents_are_logged():
        return {}
    keep = builder.plan.keep
    texts = [_parsed_text(builder, prompt, choice) for prompt in builder.prompts for choice in prompt.shown(keep)]
    prompts = (original or builder.plan).prompts
    plan = ""
    if original is not None:
        plan = json.dumps({**original.with_seed(builder.plan.params.seed).to_dict(), "prompts": []})
    return {
        "prompt": _cut([_without_pixels(prompt) for prompt in prompts]),
        "output": _cut(texts),
        "plan": plan if len(plan) <= MAX_CHARS else "",
    }


def logged_text(reasoning: str, content: str, calls: Iterable[tuple[str, str]]) -> str:
    """Return a choice as one text: thinking, text, and calls of tools without their ids, which are random.

    Args:
        calls: Name and arguments (JSON text) of each.
    """
    parts = [reasoning, content, *(f"{name}({arguments})" for name, arguments in calls)]
    return "\n".join(part for part in parts if part)


def is_cut(text: str) -> bool:
    """Whether a logged prompt or output was cut; JSON in ASCII never ends with the mark."""
    return text.endswith(CUT_MARK)


def _parsed_text(builder: OutputBuilder, prompt: PromptState, choice: ChoiceState) -> str:
    message = parse_output(builder.plan.output, choice.text, in_reasoning=prompt.in_reasoning)
    return logged_text(message.reasoning, message.content, ((call.name, call.arguments) for call in message.tool_calls))


def _without_pixels(prompt: PromptMessage) -> PromptMessage:
    """The prompt without the bytes of its pictures."""
    return {**prompt, "messages": bare_images(prompt["messages"])} if "messages" in prompt else prompt


def log_request(usage: Usage) -> None:
    """Write one log record about an ended request, without its contents (BLAZR_LOG_REQUESTS)."""
    facts = {
        "request_id": usage.request_id,
        "tenant": usage.tenant,
        "model": usage.model,
        "endpoint": usage.endpoint,
        "outcome": usage.outcome,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "duration_s": round(usage.duration_s, 4),
        "queue_s": round(usage.queue_s, 4),
    }
    logger.info("request %s", " ".join(f"{name}={value}" for name, value in facts.items()), extra={"facts": facts})


def _cut(value: object) -> str:
    # JSON in ASCII: the database accepts neither U+0000 nor lone surrogates.
    text = json.dumps(value)
    limit = MAX_CHARS
    return text if len(text) <= limit else text[: limit - 1] + CUT_MARK


def request_log_sweep() -> int:
    """Delete usage records older than ``BLAZR_RETENTION_DAYS`` (0: none) in batches; daily sums are kept.

    Returns:
        The number of deleted rows.
    """
    if not settings.BLAZR_REQUEST_LOG_DAYS:
        return 0
    before = timezone.now() - timedelta(days=settings.BLAZR_REQUEST_LOG_DAYS)
    removed = 0
    while True:
        rows = UsageRecord.objects.filter(created_at__lt=before).order_by("created_at")
        old = list(rows.values_list("pk", flat=True)[:SWEEP_BATCH])
        if not old:
            return removed
        removed += UsageRecord.objects.filter(pk__in=old).delete()[0]
