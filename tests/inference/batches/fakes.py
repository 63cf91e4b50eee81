"""A model manager that answers at once, or holds on; and short ways to make files and batches."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import orjson

from inference.batches import runner, upkeep
from inference.batches.services import batch_create
from inference.errors import BlazrError, GenerationFailed
from inference.files.services import file_create
from inference.files.store import FileWriter
from inference.jobs import hints
from inference.models import Batch, StoredFile
from inference.values.principal import LOCAL, Principal
from inference.values.states import ResidentModel


def end_waits(monkeypatch) -> None:
    """Turns are taken by hand, without a thread: everything that is due happens at once."""
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "RETRY_DELAY_S"):
        monkeypatch.setattr(runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


class EchoManager:
    """Answers each request with its prompt, reversed, unless ``holds`` says to keep it."""

    def __init__(self, *checkpoint_ids: str, holds: Callable[[Any], bool] = lambda message: False) -> None:
        self.checkpoint_ids = list(checkpoint_ids)
        self.holds = holds
        self.failure: Callable[[Any], BlazrError | None] = lambda message: None
        self.messages: list[Any] = []
        self.held: dict[str, tuple[Any, Callable[[list[Any]], None]]] = {}
        self.runs_alone = False
        self.most_held = 0
        self.alone: dict[str, tuple[Any, Callable[[list[Any]], None]]] = {}
        self.grants_turns = True

    def submit(self, message, on_events, on_alone=None) -> None:
        self.messages.append(message)
        if "alone_tokens" in message and on_alone is not None:
            self.alone[message["request_id"]] = (message, on_events)
            if self.grants_turns:
                on_alone(message["request_id"])
        else:
            self._take(message, on_events)

    def start_alone(self, request_id: str) -> None:
        self._take(*self.alone.pop(request_id))

    def _take(self, message, on_events) -> None:
        if self.holds(message):
            self.held[message["request_id"]] = (message, on_events)
            self.most_held = max(self.most_held, len(self.held))
            return
        self._answer(message, on_events)

    def answer_held(self) -> None:
        held, self.held = self.held, {}
        for message, on_events in held.values():
            self._answer(message, on_events)

    def _answer(self, message, on_events) -> None:
        head = {"request_id": message["request_id"], "attempt": 0}
        error = self.failure(message)
        if error is not None:
            on_events([{**head, "index": 0, "type": "error", "error": error.to_dict()}])
            return
        prompt = message["prompt"]
        if "inputs" in prompt:
            on_events(_vectors(head, prompt["inputs"]))
            return
        text = prompt["text"][::-1] if "text" in prompt else prompt["messages"][-1]["content"][::-1]
        delta = {"choice": 0, "text": text, "token_ids": [1, 2], "finish_reason": "stop", "stop_reason": None}
        usage = {
            "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "queue_s": 0.25, "duration_s": 0.75,
        }  # fmt: skip
        on_events(
            [
                {**head, "index": 0, "type": "start", "prompt_tokens": 3},
                {**head, "index": 1, "type": "delta", **delta},
                {**head, "index": 2, "type": "done", "usage": usage},
            ]
        )

    def cancel(self, request_id: str) -> bool:
        found = self.held.pop(request_id, None) or self.alone.pop(request_id, None)
        if found is None:
            return False
        error = GenerationFailed("The request was cancelled.").to_dict()
        found[1]([{"request_id": request_id, "attempt": 0, "index": 0, "type": "error", "error": error}])
        return True

    def describe(self):
        return tuple(ResidentModel(item, "ready", 1.0) for item in self.checkpoint_ids)

    def load_cost_s(self) -> float:
        return 0.0


def _vectors(head: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """(length, 0, …, 0, 1) for each input."""
    events = [{**head, "type": "start", "prompt_tokens": 2 * len(inputs)}]
    for number, item in enumerate(inputs):
        vector = np.zeros(16, dtype="<f4")
        vector[0], vector[-1] = len(item.get("text", item.get("token_ids", ()))), 1
        embedding = base64.b64encode(vector.tobytes()).decode()
        events.append({**head, "type": "delta", "choice": number, "text": "", "token_ids": [], "embedding": embedding})
    usage = {
        "prompt_tokens": 2 * len(inputs), "completion_tokens": 0, "cached_tokens": 0, "queue_s": 0.0, "duration_s": 0.5,
    }  # fmt: skip
    return [
        {**event, "index": index} for index, event in enumerate([*events, {**head, "type": "done", "usage": usage}])
    ]


def line(custom_id: str, prompt: str = "abc", model: str = "tiny", **body: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def store_file(
    lines: Iterable[dict[str, Any] | bytes], principal: Principal = LOCAL, purpose: str = "batch"
) -> StoredFile:
    writer = FileWriter()
    for item in lines:
        writer.write((item if isinstance(item, bytes) else orjson.dumps(item)) + b"\n")
    return file_create(writer=writer, filename="in.jsonl", purpose=purpose, tenant=principal.tenant, expires_s=None)


def make_batch(lines: Iterable[dict[str, Any] | bytes], principal: Principal = LOCAL, **values: Any) -> Batch:
    file = store_file(lines, principal)
    values = {
        "input_file_id": file.file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **values,
    }
    return batch_create(values=values, principal=principal)


def contents(file_id: str) -> list[dict[str, Any]]:
    from inference.files.store import open_file

    if not file_id:
        return []
    with open_file(StoredFile.objects.get(file_id=file_id).sha256) as file:
        return [orjson.loads(item) for item in file]


def make_runner(manager: EchoManager, owner: str = "w", window: int = 4) -> runner.BatchRunner:
    return runner.BatchRunner(manager, owner=owner, window=window)


def work(batch: Batch, *runners: runner.BatchRunner, turns: int = 60) -> Batch:
    """Turn everything until the batch has ended, or so often."""
    for _ in range(turns):
        upkeep.batches_turn(owner="keeper")
        for item in runners:
            item.turn()
        batch.refresh_from_db()
        if batch.is_finished:
            break
    return batch
