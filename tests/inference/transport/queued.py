"""What waits in a queue of Redis."""

from __future__ import annotations

import json
from typing import Any


def queued_ids(client: Any, queue: str) -> list[str]:
    """Ids of the tasks in a queue, oldest first."""
    return [json.loads(item)["headers"]["id"] for item in reversed(client.lrange(queue, 0, -1))]
