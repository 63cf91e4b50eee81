"""What log records of a task are about: the request that it works for. Standard library only."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the generation that this task serves, as the client sees it in x-request-id."""
