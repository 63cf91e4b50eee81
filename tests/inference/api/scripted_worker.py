"""A worker whose engine is a script: real Redis, real messages, real events, no model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from inference.errors import BlazrError
from inference.transport import keys as redis_keys
from inference.transport.held_messages import take_messages
from inference.values.queue_place import StartOutlook
from inference.values.states import ResidentModel, WorkerState

Event = dict[str, Any]

LEASE_S = 3600
"""The worker counts as alive until it stops, also while a busy machine lets none of its threads run."""


class Reply:
    """Makes the events of one request, indices included."""

    def __init__(self, message: dict[str, Any], cancelled: threading.Event) -> None:
        self.message = message
        self.cancelled = cancelled
        self._index = 0
        self._num_tokens = 0
        self.prompt_tokens = 5

    def _event(self, kind: str, **members: Any) -> Event:
        event = {
            "request_id": self.message["request_id"],
            "attempt": self.message["attempt"],
            "index": self._index,
            "type": kind,
            **members,
        }
        self._index += 1
        return event

    def start(self, **members: Any) -> Event:
        return self._event("start", prompt_tokens=self.prompt_tokens, **members)

    def delta(self, text: str, *, choice: int = 0, token_ids: list[int] | None = None, **members: Any) -> Event:
        token_ids = [1000 + self._num_tokens] if token_ids is None else token_ids
        self._num_tokens += len(token_ids)
        return self._event("delta", choice=choice, text=text, token_ids=token_ids, **members)

    def done(self, *, cached_tokens: int = 0) -> Event:
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self._num_tokens,
            "cached_tokens": cached_tokens,
            "queue_s": 0.0,
            "ttft_s": 0.01,
            "duration_s": 0.02,
        }
        return self._event("done", usage=usage)

    def error(self, error: BlazrError) -> Event:
        return self._event("error", error=error.to_dict())


Script = Callable[[Reply], Iterator[Event]]


def say(*texts: str, finish_reason: str = "stop", pause_s: float = 0.0) -> Script:
    """A script that says the same in every choice."""

    def script(reply: Reply) -> Iterator[Event]:
        yield reply.start()
        for number, text in enumerate(texts):
            if pause_s:
                time.sleep(pause_s)
            last = {"finish_reason": finish_reason, "stop_reason": None} if number == len(texts) - 1 else {}
            for choice in range(reply.message["params"].get("n", 1)):
                yield reply.delta(text, choice=choice, **last)
        yield reply.done()

    return script


class ScriptedWorker:
    """Takes messages from the queues of ``checkpoint_ids`` and answers with ``script``."""

    def __init__(self, url: str) -> None:
        self.script: Script = say("Hello", ", world")
        self.checkpoint_ids: set[str] = set()
        self.pinned = False
        self.messages: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self._flags: dict[str, threading.Event] = {}
        self._waiting: dict[str, None] = {}
        self._url = url
        self._stop = threading.Event()
        self._control_id = "$"
        self._bell = f"scripted:{id(self):x}:{time.monotonic_ns()}"
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._take, self._listen)]
        client = self._client()
        last: Any = client.xrevrange(redis_keys.CONTROL_STREAM, count=1)
        self._control_id = last[0][0].decode() if last else "0-0"
        client.close()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for flag in tuple(self._flags.values()):
            flag.set()
        with self._client() as client:  # both threads wait in Redis; a test shall not wait for the end of that
            client.lpush(f"{self._bell}:take", "stop")
            client.xadd(f"{self._bell}:listen", {"stop": ""})
            for thread in self._threads:
                thread.join(60)
            client.delete(f"{self._bell}:take", f"{self._bell}:listen", redis_keys.worker("scripted"))
            client.zrem(redis_keys.WORKERS, "scripted")
            for item in self.checkpoint_ids:
                client.zrem(redis_keys.holders(item), "scripted")

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self._url, protocol=2)

    def beat(self, client: redis.Redis) -> None:
        """What a real worker's heartbeat writes, for longer; requests wait until their scripts say something."""
        outlook = StartOutlook(waiting_ids=tuple(self._waiting))
        held = tuple(self.checkpoint_ids)  # tests add to the set while this thread reads it
        models = tuple(ResidentModel(item, "ready", 1.0, pinned=self.pinned, outlook=outlook) for item in held)
        state = WorkerState("scripted", heartbeat_at=time.time(), max_active=8, models=models)
        client.set(redis_keys.worker("scripted"), state.to_json(), ex=LEASE_S)
        client.zadd(redis_keys.WORKERS, {"scripted": time.time() + LEASE_S})
        for item in held:
            client.zadd(redis_keys.holders(item), {"scripted": time.time() + LEASE_S})

    def _take(self) -> None:
        client = self._client()
        beat_at = 0.0
        while not self._stop.is_set():
            if time.monotonic() - beat_at > 0.3:
                beat_at = time.monotonic()
                self.beat(client)
            models = tuple(self.checkpoint_ids)
            taken = take_messages(client, "scripted", models) if not self._stop.is_set() else None
            for item in taken.messages if taken is not None else ():
                message = json.loads(item.body)
                self.messages.append(message)
                self._waiting[message["request_id"]] = None
                threading.Thread(target=self._run, args=(message,), daemon=True).start()
            client.blpop([*map(redis_keys.arrived, models), f"{self._bell}:take"], timeout=0.1 if models else 0.05)
        client.close()

    def _run(self, message: dict[str, Any]) -> None:
        client = self._client()
        flag = self._flags.setdefault(message["request_id"], threading.Event())
        for event in self.script(Reply(message, flag)):
            self._waiting.pop(message["request_id"], None)
            if flag.is_set():
                break
            client.xadd(redis_keys.out(message["web_id"]), redis_keys.pack_events([event]))
        self._waiting.pop(message["request_id"], None)
        client.close()

    def _listen(self) -> None:
        client = self._client()
        while not self._stop.is_set():
            streams = {redis_keys.CONTROL_STREAM: self._control_id, f"{self._bell}:listen": "0-0"}
            found: Any = client.xread(streams, block=100)
            for name, entries in found or ():
                for entry_id, fields in entries if name == redis_keys.CONTROL_STREAM.encode() else ():
                    self._control_id = entry_id
                    if b"cancel" in fields:
                        request_id = fields[b"cancel"].decode()
                        self.cancelled.append(request_id)
                        self._flags.setdefault(request_id, threading.Event()).set()
        client.close()
