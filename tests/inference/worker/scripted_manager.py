"""A model manager that takes requests; the test says what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inference.errors import BlazrError, GenerationCancelled
from inference.values.states import ResidentModel


class ScriptedManager:
    """Takes requests; the test says what becomes of them."""

    def __init__(self, *checkpoint_ids: str) -> None:
        self.checkpoint_ids = checkpoint_ids
        self.messages: dict[str, dict[str, Any]] = {}
        self.sinks: dict[str, Callable[[list[Any]], None]] = {}
        self.indices: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.ended: set[str] = set()
        self.on_alone: Callable[[str], None] = lambda request_id: None
        self.started_alone: list[str] = []

    def submit(self, message, on_events, on_alone=None) -> None:
        self.messages[message["request_id"]] = message
        self.sinks[message["request_id"]] = on_events
        self.on_alone = on_alone

    def start_alone(self, request_id: str) -> None:
        self.started_alone.append(request_id)

    def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        self.error(request_id, GenerationCancelled("The request was cancelled."))
        return True

    def describe(self):
        return tuple(ResidentModel(item, "ready", 1.0) for item in self.checkpoint_ids)

    @property
    def runs_alone(self) -> bool:
        return any("alone_tokens" in item for key, item in self.messages.items() if key not in self.ended)

    def event(self, request_id: str, kind: str, **members: Any) -> None:
        index = self.indices[request_id] = self.indices.get(request_id, -1) + 1
        if kind in ("done", "error"):
            self.ended.add(request_id)
        event = {"request_id": request_id, "attempt": 0, "index": index, "type": kind, **members}
        self.sinks[request_id]([event])

    def error(self, request_id: str, error: BlazrError) -> None:
        self.event(request_id, "error", error=error.to_dict())

    def tokens(self, request_id: str, text: str, *token_ids: int, **members: Any) -> None:
        self.event(request_id, "delta", choice=0, text=text, token_ids=list(token_ids), **members)

    def done(self, request_id: str, prompt: int = 3, completion: int = 2) -> None:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": 0}
        self.event(request_id, "done", usage=usage)
