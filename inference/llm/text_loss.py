"""Measure the mean loss of a loaded checkpoint over a text, through the engine that also serves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inference.errors import BlazrError, InvalidRequest
from inference.llm.llm import LLM
from inference.values.sampling_params import SamplingParams


def mean_loss(
    llm: LLM, token_ids: Sequence[int], *, window: int, progress: Callable[[float], None] | None = None
) -> tuple[float, int]:
    """Return the mean negative log-likelihood of a text's next tokens in nats, and their number.

    Args:
        llm: Not driven by a loop.
        token_ids: The text; at least two tokens.
        window: Tokens that are predicted from one empty state, as in ``measure_quality``; the last may be fewer.
        progress: Gets the share done.

    Raises:
        InvalidRequest: The text has fewer than two tokens.
        BlazrError: The engine refused a window.
    """
    if len(token_ids) < 2:
        raise InvalidRequest(f"the text has {len(token_ids)} tokens; at least 2 are needed to predict one.")
    windows = [token_ids[at : at + window] for at in range(0, len(token_ids), window)]
    losses: list[float] = []
    for number, part in enumerate(windows, start=1):
        if len(part) > 1:
            losses += _losses(llm, part)
        if progress is not None:
            progress(number / len(windows))
    return math.fsum(losses) / len(losses), len(losses)


def _losses(llm: LLM, token_ids: Sequence[int]) -> list[float]:
    params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0)
    found: list[float] = []
    for event in llm.events(token_ids, params):
        if event["type"] == "error":
            raise BlazrError.from_dict(event["error"])
        if event["type"] == "start":
            found = [-entry["logprob"] for entry in event["prompt_logprobs"] if entry is not None]
    return found
