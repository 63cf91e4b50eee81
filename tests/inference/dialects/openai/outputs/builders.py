"""A builder that has taken a request's events, and its format."""

from __future__ import annotations

from typing import Any

from inference.dialects.openai.outputs.base import OutputFormatter
from inference.dialects.openai.outputs.formats import output_formatter
from inference.dialects.openai.requests import plan_from_body
from inference.values.output_builder import OutputBuilder

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}


def entry(token: str, token_id: int, logprob: float, *others: tuple[str, int, float]) -> dict[str, Any]:
    top = [{"token": text, "token_id": other, "bytes": list(text.encode()), "logprob": value}
           for text, other, value in ((token, token_id, logprob), *others)]  # fmt: skip
    return top[0] | {"top": top}


def event(kind: str, **members: Any) -> Any:
    return {"request_id": "r", "attempt": 0, "index": 0, "type": kind, **members}


def delta(text: str, token_id: int = 7, **members: Any) -> Any:
    return event("delta", choice=0, text=text, token_ids=[token_id]) | members


def taken(endpoint: Any, body: dict[str, Any], *events: Any) -> OutputFormatter:
    """The format of a request with these events, between a start and an end."""
    plan = plan_from_body(endpoint, {"model": "m", **body})
    builder = OutputBuilder(plan)
    for item in (event("start", prompt_tokens=3), *events, event("done", usage=USAGE)):
        builder.add(0, item)
    return output_formatter(plan, builder, request_id="id-1", created=5, model="m")
