"""CallerQueues: keep waiting items of callers, who take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class CallerQueues(Generic[T]):
    """Queues of callers. When an item of a caller is removed, the caller's next turn is after all other callers."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def count(self, caller: str) -> int:
        return len(self._queues.get(caller, ()))

    def add(self, caller: str, item: T) -> None:
        self._queues.setdefault(caller, deque()).append(item)

    def heads(self) -> Iterator[tuple[str, T]]:
        """Yield each caller with its oldest item, in the order of their turns."""
        for caller, queue in self._queues.items():
            yield caller, queue[0]

    def in_turns(self) -> Iterator[T]:
        """Yield all items in the order in which the callers' turns would take them."""
        left = [list(queue) for queue in self._queues.values()]
        for number in range(max(map(len, left), default=0)):
            yield from (queue[number] for queue in left if number < len(queue))

    def remove(self, caller: str, item: T) -> None:
        """Remove an item, which was taken or given up.

        Raises:
            KeyError, ValueError: The item isn't there.
        """
        queue = self._queues[caller]
        queue.remove(item)
        if queue:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]
