"""PooledOutput: turn engine outputs into events with pooled vectors, one delta per input."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

from inference.engine.request import EngineOutput, FinishReason
from inference.errors import BlazrError, GenerationFailed
from inference.values.messages import GenerationEvent


class PooledOutput:
    """Makes the events of one request, numbered from 0, and exactly one terminal event; as ``TextOutput`` does.

    Args:
        received_at: ``time.monotonic()`` when the request came; durations count from there.
    """

    def __init__(self, *, request_id: str, attempt: int, prompt_tokens: Sequence[int], received_at: float) -> None:
        self._request_id = request_id
        self._attempt = attempt
        self._prompt_tokens = sum(prompt_tokens)
        self._received_at = self._added_at = received_at
        self._first_at: float | None = None
        self._cached_tokens = 0
        self._next_index = 0
        self._open = set(range(len(prompt_tokens)))
        self.is_done = False

    def is_stopped(self, number: int) -> bool:
        """Never: vectors know no stop strings."""
        return False

    def begin(self) -> list[GenerationEvent]:
        """The engine has accepted the request."""
        self._added_at = time.monotonic()
        return self._emit("start", {"prompt_tokens": self._prompt_tokens})

    def accept(self, number: int, output: EngineOutput) -> list[GenerationEvent]:
        """Events for the news of an input; one that fails ends the whole request."""
        if self.is_done or number not in self._open or output.finish_reason is None:
            return []
        if output.finish_reason is FinishReason.ERROR:
            return self.fail(output.error or GenerationFailed("the request failed for an unknown reason."))
        if output.pooled is None:
            return self.fail(GenerationFailed("the request was ended before its vectors were computed."))
        self._cached_tokens += output.num_cached_tokens
        if self._first_at is None:
            self._first_at = time.monotonic()
        vector = base64.b64encode(output.pooled.astype("<f4").tobytes()).decode()
        return self._finish(number, {"embedding": vector, "finish_reason": "stop"})

    def fail(self, error: BlazrError) -> list[GenerationEvent]:
        if self.is_done:
            return []
        self.is_done = True
        return self._emit("error", {"error": error.to_dict()})

    def abort(self) -> list[GenerationEvent]:
        """End the request because nobody waits for it."""
        events: list[GenerationEvent] = []
        for number in sorted(self._open):
            events += self._finish(number, {"finish_reason": str(FinishReason.ABORT)})
        return events

    def _finish(self, number: int, values: dict[str, Any]) -> list[GenerationEvent]:
        self._open.discard(number)
        events = self._emit("delta", {"choice": number, "text": "", "token_ids": [], "stop_reason": None, **values})
        if not self._open:
            self.is_done = True
            events += self._emit("done", {"usage": self._usage()})
        return events

    def _emit(self, kind: str, values: dict[str, Any]) -> list[GenerationEvent]:
        event: Any = {
            "request_id": self._request_id,
            "attempt": self._attempt,
            "index": self._next_index,
            "type": kind,
            **values,
        }
        self._next_index += 1
        return [event]

    def _usage(self) -> dict[str, Any]:
        now = time.monotonic()
        first = now if self._first_at is None else self._first_at
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": 0,
            "cached_tokens": self._cached_tokens,
            "queue_s": self._added_at - self._received_at,
            "ttft_s": first - self._received_at,
            "duration_s": now - self._received_at,
        }
