"""Apply ``truncation: auto``: drop the oldest turns of a conversation that exceeds the context."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inference.dialects.responses.items import Item
from inference.dialects.responses.serializers import ResponseRequest
from inference.errors import InvalidRequest
from inference.serving.tokenizers import prompt_tokens
from inference.values.plan import GenerationPlan

RESERVED_SHARE = 4
"""Without max_output_tokens, 1 / RESERVED_SHARE of the context is kept free for the output."""


async def fitted_plan(request: ResponseRequest, history: Sequence[Item]) -> GenerationPlan:
    """Return a plan with as many of the latest turns as possible, that leaves room for the output.

    A turn begins with a message of the user. Instructions and messages of the system and the developer are kept. The
    last turn is kept even if it is too long, and is refused later.

    Args:
        request: The validated body.
        history: Items of the earlier responses.

    Raises:
        InvalidRequest: With the field in ``param``.
    """
    items = [*history, *request.items]
    starts = [0, *(number for number, item in enumerate(items) if number and item.get("role") == "user")]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(await asyncio.to_thread(request.plan_of, _from(items, starts[middle]))):
            high = middle
        else:
            low = middle + 1
    return await asyncio.to_thread(request.plan_of, _from(items, starts[low]))


def _from(items: Sequence[Item], start: int) -> list[Item]:
    kept = [item for item in items[:start] if item.get("role") in ("system", "developer")]
    return [*kept, *items[start:]]


async def _fits(plan: GenerationPlan) -> bool:
    try:
        num_tokens, max_model_len = await prompt_tokens(plan)
    except InvalidRequest:
        # The prompt is too long to render. Any other error is raised again when the last turn is sent.
        return False
    reserved = plan.params.max_tokens
    if reserved is None:
        reserved = max_model_len // RESERVED_SHARE
    return num_tokens + max(reserved, 1) <= max_model_len
