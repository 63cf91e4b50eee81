"""Prompt: what a model is to continue, as token ids."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.request import CacheBreakpoint, ImageSpan
from inference.values.messages import PromptMessage


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is to continue.

    Attributes:
        text: As the client wrote it (or the template); None for token ids.
        conversation: The messages that it was rendered from, a saved state's included; None: from none.
        breakpoints: Where the messages' marks are, ascending; None: they have none.
        num_state_tokens: Number of the first tokens that a saved state has, and not the client's prompt.
        images: The conversation's pictures.
    """

    token_ids: tuple[int, ...]
    text: str | None
    conversation: PromptMessage | None = None
    breakpoints: tuple[CacheBreakpoint, ...] | None = None
    num_state_tokens: int = 0
    images: tuple[ImageSpan, ...] = ()
