"""What peers have in common that stream tokens: the figures, given one way to run requests together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from bench.child import decode_rate, random_prompts, stream_figures

Prompt = TypeVar("Prompt")
Arrivals = list[list[tuple[float, int]]]
"""Of each request (time, number of tokens that came with it), in order."""


class StreamingPeer(ABC, Generic[Prompt]):
    """Measures what ``_run`` does with prompts of any kind."""

    @abstractmethod
    def _run(self, prompts: list[Prompt], new: int) -> tuple[float, Arrivals]:
        """When the requests were sent, and what came of each; ``new`` tokens are asked for."""

    @abstractmethod
    def _prompts(self, count: int, length: int, seed: int) -> list[Prompt]:
        """Seeded prompts of ``length`` tokens, all different."""

    def prefill(self, tokens: int, seed: int = 3) -> dict[str, float]:
        """Prompt tokens per second until the first new token."""
        started, arrivals = self._run(self._prompts(1, tokens, seed), 1)
        return {"tokens_per_s": tokens / (arrivals[0][0][0] - started)}

    def decode(self, batch: int, prompt: int, new: int, seed: int = 3) -> dict[str, float]:
        """Tokens per second from the moment every sequence has its first token."""
        return decode_rate(self._run(self._prompts(batch, prompt, seed), new + 1)[1])

    def clients(self, batch: int, prompt: int, new: int, seed: int = 3) -> dict[str, Any]:
        """Requests that arrive together, prefill included."""
        return stream_figures(*self._run(self._prompts(batch, prompt, seed), new))


class TokenPeer(StreamingPeer[list[int]]):
    """One that takes token ids; sets ``_vocab_size`` at the latest when it loads."""

    _vocab_size: int

    def _prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        return random_prompts(count, length, self._vocab_size, seed)
