"""What waits in a queue of Redis, and messages that a test queues and takes."""

from __future__ import annotations

from typing import Any

import orjson

from inference.transport.held_messages import HeldMessage, take_messages
from inference.transport.open_requests import NewMessage, admit_message


class _Awaitable:
    """A client whose calls are awaited, over one whose calls aren't."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def eval(self, *args: Any) -> Any:
        return self._client.eval(*args)


def queued_ids(client: Any, queue: str) -> list[str]:
    """Ids of the requests in a queue, oldest first."""
    return [item.decode() for item in reversed(client.lrange(queue, 0, -1))]


def enqueue(client: Any, item: Any, *, is_again: bool = False) -> None:
    """Queue a message as the web process does; ``is_again``: as one that a worker had before."""
    new = NewMessage(item["request_id"], item["model"], item.get("owner", ""), 60.0, orjson.dumps(item))
    try:
        admit_message(_Awaitable(client), new, max_requests=10_000, is_again=is_again).send(None)
    except StopIteration:
        return
    raise AssertionError("the client waits for nothing")


def take(client: Any, worker_id: str, *checkpoint_ids: str, **limits: int) -> list[HeldMessage]:
    """Take messages as a worker does."""
    taken = take_messages(client, worker_id, checkpoint_ids or ("a",), **limits)
    assert taken is not None
    assert taken.unknown == 0
    return taken.messages
