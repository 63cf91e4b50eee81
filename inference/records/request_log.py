"""Log a line per request, record contents where configured, and remove old records."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from inference.models import UsageRecord
from inference.records.usage import Usage
from inference.values.images import bare_images
from inference.values.messages import PromptMessage
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan

logger = logging.getLogger(__name__)

SWEEP_BATCH = 500
MAX_CHARS = 20_000
"""Maximum characters of a prompt, and of an output, in a row."""


def contents_are_logged() -> bool:
    """Whether prompts and outputs are recorded (BLAZR_LOG_REQUESTS=contents)."""
    return bool(settings.BLAZR_REQUEST_LOG_CONTENTS)


def logged_contents(builder: OutputBuilder, original: GenerationPlan | None = None) -> dict[str, Any]:
    """Return ``prompt`` and ``output`` of a record as JSON, each cut to ``MAX_CHARS``; empty unless configured.

    Args:
        original: The request as it came, before anything of its model was filled in; recorded beside its prompts as
            ``plan``, so that it can be replayed. None: it can't.
    """
    if not contents_are_logged():
        return {}
    texts = [choice.text for prompt in builder.prompts for choice in prompt.choices]
    prompts = (original or builder.plan).prompts
    plan = ""
    if original is not None:
        plan = json.dumps({**original.with_seed(builder.plan.params.seed).to_dict(), "prompts": []})
    return {
        "prompt": _cut([_without_pixels(prompt) for prompt in prompts]),
        "output": _cut(texts),
        "plan": plan if len(plan) <= MAX_CHARS else "",
    }


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
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
