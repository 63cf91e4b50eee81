"""Parts of a streamed answer on their way to the ASGI server, from a task or at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class PartWriter:
    """Hands parts of a body to a server's ``send``: ``write`` in the answer's task, ``write_now`` anywhere on its loop.

    A server's ``send`` waits only while the client is behind. What it waits for then is left to the task, which ends it
    before it writes anything else.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._rest: _Rest | None = None

    async def write(self, body: bytes) -> None:
        """Write a part; waits for a client that is behind."""
        if self._rest is not None:
            rest, self._rest = self._rest, None
            await rest
        await self._send(_part(body))

    def write_now(self, body: bytes) -> None:
        """Write a part without waiting; only while the client isn't behind."""
        assert self._rest is None
        steps = self._send(_part(body)).__await__()
        try:
            waits_for = next(steps)
        except StopIteration:
            return
        self._rest = _Rest(steps, waits_for)

    @property
    def is_behind(self) -> bool:
        """Whether a part that was written at once is still waiting for the client."""
        return self._rest is not None

    def close(self) -> None:
        """Drop what still waits."""
        if self._rest is not None:
            self._rest.close()
            self._rest = None


class _Rest:
    """The rest of an awaitable that was begun outside of a task, and now waits for ``waits_for``."""

    def __init__(self, steps: Generator[Any, Any, None], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waits_for
            yield from self._steps
        finally:
            self._steps.close()

    def close(self) -> None:
        self._steps.close()


def _part(body: bytes) -> Mapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
