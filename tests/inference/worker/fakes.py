"""A deterministic LLM without a network, and a presence that only takes notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.errors import BlazrError, EngineDead, InvalidRequest
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.worker.interfaces import LoadPlan, LoadSizes

USAGE = {"prompt_tokens": 3, "cached_tokens": 0, "queue_s": 0.0, "ttft_s": 0.0, "duration_s": 0.0}


@dataclass
class Prepared:
    request_id: str
    message: GenerateMessage


class FakeLLM:
    """Request token i is ``100 * len(prompt) + i``; goes on behind what was delivered; stops at max_tokens."""

    def __init__(self, *, step_s: float = 0.0, gate: threading.Event | None = None, size: int = 10) -> None:
        self.step_s = step_s
        self.gate = gate
        self.size = size
        self.max_model_len = 1000
        self.running: dict[str, dict[str, Any]] = {}
        self.seen: list[GenerateMessage] = []
        self.closed = False
        self.die = False

    @property
    def adapters(self) -> Any:
        raise InvalidRequest("no room for adapters")

    def prepare(self, message: GenerateMessage) -> Prepared:
        if message["prompt"].get("text") == "refuse me":
            raise InvalidRequest("refused as asked.", param="prompt")
        if message["prompt"].get("text") == "break":
            raise RuntimeError("broken")
        return Prepared(message["request_id"], message)

    def prepare_after(self, state: Any, message: GenerateMessage) -> Prepared:
        return self.prepare(message)

    def read_state(self, path: Path, source: str | None = None, *, adapter: str | None = None) -> Any:
        return path.read_bytes()

    def state_bytes(self, num_tokens: int) -> int:
        return 8 * num_tokens

    def state_identity(self) -> object:
        return None

    def state_content(self, state: Any, *, model: str) -> list[bytes]:
        return [f"{model}: {state}".encode()]

    def add(self, prepared: Prepared) -> None:
        message = prepared.message
        self.seen.append(message)
        delivered = (message.get("delivered") or [[]])[:1]
        self.running[prepared.request_id] = {
            "message": message,
            "index": 0,
            "token": len(delivered[0]) if delivered else 0,
            "max": message["params"].get("max_tokens", 16),
            "base": 100 * len(message["prompt"].get("text", "")),
        }

    def abort(self, request_id: str) -> bool:
        return self.running.pop(request_id, None) is not None

    def has_unfinished(self) -> bool:
        return bool(self.running)

    @property
    def step_tokens(self) -> int:
        return len(self.running)

    def step(self) -> list[GenerationEvent]:
        if self.die:
            raise EngineDead("the fake device is gone.")
        if self.gate is not None:
            self.gate.wait(60)
        if self.step_s:
            time.sleep(self.step_s)
        events: list[GenerationEvent] = []
        for request_id, state in list(self.running.items()):

            def event(kind: str, state: dict[str, Any] = state, request_id: str = request_id, **members: Any) -> Any:
                state["index"] += 1
                return {
                    "request_id": request_id,
                    "attempt": state["message"]["attempt"],
                    "index": state["index"] - 1,
                    "type": kind,
                    **members,
                }

            if state["index"] == 0:
                events.append(event("start", prompt_tokens=3))
            if state["token"] < state["max"]:
                token = state["base"] + state["token"]
                state["token"] += 1
                events.append(event("delta", choice=0, text=f"{token} ", token_ids=[token]))
            if state["token"] >= state["max"]:
                events.append(event("done", usage={**USAGE, "completion_tokens": state["token"]}))
                del self.running[request_id]
        return events

    def memory_bytes(self) -> dict[str, int]:
        return {"weights": self.total_bytes(), "states": 0}

    def total_bytes(self) -> int:
        return self.size

    def stats(self) -> dict[str, Any]:
        return {"running": len(self.running)}

    def close(self) -> None:
        self.closed = True


@dataclass
class FakePlans:
    """Plans by checkpoint id; counts loads."""

    needed: int = 10
    keep_alive_s: float = -1
    pinned: bool = False
    max_num_seqs: int = 4
    make: Callable[[str], FakeLLM] = lambda checkpoint_id: FakeLLM()
    fail: dict[str, BlazrError | Exception] = field(default_factory=dict)
    gate: threading.Event | None = None
    loads: list[str] = field(default_factory=list)
    llms: dict[str, FakeLLM] = field(default_factory=dict)

    def __call__(self, checkpoint_id: str, sizes: LoadSizes | None = None) -> LoadPlan:
        def load(progress: Callable[[float, str], None]) -> FakeLLM:
            self.loads.append(checkpoint_id)
            progress(0.5, "half")
            if self.gate is not None:
                self.gate.wait(60)
            if checkpoint_id in self.fail:
                raise self.fail[checkpoint_id]
            self.llms[checkpoint_id] = self.make(checkpoint_id)
            return self.llms[checkpoint_id]

        return LoadPlan(
            checkpoint_id,
            self.needed,
            self.keep_alive_s,
            self.max_num_seqs,
            load,
            pinned=self.pinned,
            sizes={"weights_bytes": self.needed},
            resized=not_resized,
        )


def not_resized(sizes: LoadSizes) -> LoadPlan:
    """Stand in for ``LoadPlan.resized`` where no other sizes are planned."""
    raise AssertionError(f"planned with {sizes}")


class FakePresence:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.ended: list[tuple[str, BlazrError | None]] = []
        self.queued: dict[str, int] = {}

    def advertise(self, checkpoint_id: str) -> None:
        self.calls.append(("advertise", checkpoint_id))

    def withdraw(self, checkpoint_id: str) -> bool:
        self.calls.append(("withdraw", checkpoint_id))
        return bool(self.queued.pop(checkpoint_id, 0))

    def pause(self, checkpoint_id: str) -> None:
        self.calls.append(("pause", checkpoint_id))

    def resume(self, checkpoint_id: str) -> None:
        self.calls.append(("resume", checkpoint_id))

    def load_ended(self, checkpoint_id: str, error: BlazrError | None) -> None:
        self.ended.append((checkpoint_id, error))

    def run_alone(self, request_id: str) -> None:
        self.calls.append(("alone", request_id))

    def changed(self) -> None:
        pass


class Client:
    """Collects the events of the requests that it sends."""

    def __init__(self) -> None:
        self.events: dict[str, list[GenerationEvent]] = {}
        self.calls: list[list[GenerationEvent]] = []
        self.finished: list[str] = []
        self.condition = threading.Condition()

    def on_events(self, events: list[GenerationEvent]) -> None:
        with self.condition:
            self.calls.append(events)
            for event in events:
                self.events.setdefault(event["request_id"], []).append(event)
                if event["type"] in ("done", "error"):
                    self.finished.append(event["request_id"])
            self.condition.notify_all()

    def wait(self, *request_ids: str, timeout_s: float = 60) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: all(item in self.finished for item in request_ids), timeout_s), (
                f"unfinished: {set(request_ids) - set(self.finished)}"
            )

    def tokens(self, request_id: str) -> list[int]:
        return [token for event in self.events[request_id] for token in event.get("token_ids", ())]

    def error(self, request_id: str) -> BlazrError:
        last = self.events[request_id][-1]
        assert last["type"] == "error", last
        return BlazrError.from_dict(last["error"])


def message(request_id: str, *, model: str = "a", text: str = "abc", max_tokens: int = 5, **more: Any) -> Any:
    return {
        "request_id": request_id,
        "web_id": "web-1",
        "attempt": 0,
        "model": model,
        "prompt": {"text": text},
        "params": {"max_tokens": max_tokens},
        "priority": 0,
        "deadline": time.time() + 60,
        **more,
    }


def wait_until(check: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
