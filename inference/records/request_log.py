"""What the request log keeps beside the figures, and for how long; contents are left out unless they are asked for."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

if TYPE_CHECKING:
    from inference.serving.generation import Generation
    from inference.values.output_builder import AnswerBuilder

logger = logging.getLogger(__name__)

SWEEP_BATCH = 500
MAX_CHARS = 20_000
"""Characters of a prompt, and of an output, that a row keeps: enough to read, however long the context is."""


def contents_are_logged() -> bool:
    """Whether prompts and answers go into the log (BLAZR_LOG_REQUESTS=contents)."""
    return bool(settings.BLAZR_REQUEST_LOG_CONTENTS)


def logged_contents(builder: AnswerBuilder) -> dict[str, Any]:
    """``prompt`` and ``answer`` of a record: JSON, each cut after ``MAX_CHARS``; nothing unless asked for."""
    if not contents_are_logged():
        return {}
    texts = [choice.text for prompt in builder.prompts for choice in prompt.choices]
    return {"prompt": _cut(list(builder.plan.prompts)), "answer": _cut(texts)}


def log_request(generation: Generation, *, outcome: str, duration_s: float, queue_s: float) -> None:
    """One log record about a request that has ended (BLAZR_LOG_REQUESTS); never its contents."""
    builder = generation.builder
    facts = {
        "request_id": generation.request_id,
        "tenant": generation.principal.tenant,
        "model": generation.served.name,
        "endpoint": generation.surface.name,
        "outcome": outcome,
        "prompt_tokens": builder.prompt_tokens,
        "cached_tokens": builder.cached_tokens,
        "completion_tokens": builder.completion_tokens,
        "duration_s": round(duration_s, 4),
        "queue_s": round(queue_s, 4),
    }
    logger.info("request %s", " ".join(f"{name}={value}" for name, value in facts.items()), extra={"facts": facts})


def _cut(value: object) -> str:
    # ASCII: neither U+0000 nor a lone surrogate reaches the database.
    text = json.dumps(value)
    limit = MAX_CHARS
    return text if len(text) <= limit else text[: limit - 1] + "…"


def request_log_sweep() -> int:
    """Remove what is older than ``BLAZR_RETENTION_DAYS`` (0: nothing), some hundred rows at a time; daily sums stay.

    Returns:
        How many rows went.
    """
    from inference.models import UsageRecord

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
