"""PrefillOrder: order prefills so that callers of the same priority get the same number of tokens."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from inference.engine.running_request import Request

Caller = tuple[int, str]  # priority and name: a caller's requests of another priority have turns of their own

MAX_AWAY = 4096
"""Most callers without a request whose counts are kept."""


class PrefillOrder:
    """Count the prefill tokens of each caller.

    The caller with the fewest tokens is next; of equal callers, the one with the oldest request. A caller starts at the
    lowest count of those of its priority that wait: it neither catches up on tokens that it didn't request before, nor
    overtakes a request that waits already. A caller that leaves keeps its count until the lowest one has reached it:
    callers that return with one prompt at a time would otherwise be first each time.

    Source: the virtual token counter of Sheng et al. 2024, https://arxiv.org/abs/2401.00588, algorithm 2. Only prompt
    tokens count here.
    """

    def __init__(self) -> None:
        self._counts: dict[Caller, int] = {}

    def iterate(self, prefilling: Iterable[Request], waiting: Mapping[Caller, list[Request]]) -> Iterator[Request]:
        """Yield requests by priority, then in turns of callers, which ``record`` changes meanwhile.

        Args:
            prefilling: Running requests whose prompts aren't computed yet.
            waiting: Requests by caller, in order of arrival. A caller's requests are yielded in that order.
        """
        queues = {caller: queue.copy() for caller, queue in waiting.items()}
        for request in prefilling:
            insort(queues.setdefault(caller_of(request), []), request, key=lambda other: other.arrival)
        self._update_counts(queues)
        turns = [(caller[0], self._counts[caller], queue[0].arrival, caller) for caller, queue in queues.items()]
        heapify(turns)
        while turns:
            *_, caller = heappop(turns)
            queue = queues[caller]
            yield queue.pop(0)
            if queue:
                heappush(turns, (caller[0], self._counts[caller], queue[0].arrival, caller))

    def _update_counts(self, present: Collection[Caller]) -> None:
        lowest: dict[int, int] = {}
        for caller in self._counts.keys() & present:
            lowest[caller[0]] = min(self._counts[caller], lowest.get(caller[0], self._counts[caller]))
        absent = [(caller, count) for caller, count in self._counts.items() if caller not in present]
        away = [(caller, count) for caller, count in absent if count > lowest.get(caller[0], count)]
        counts = {caller: max(self._counts.get(caller, 0), lowest.get(caller[0], 0)) for caller in present}
        self._counts = counts | dict(away[-MAX_AWAY:])

    def record(self, request: Request, num_tokens: int) -> None:
        """Count tokens of a request that ``iterate`` has yielded."""
        self._counts[caller_of(request)] += num_tokens


def caller_of(request: Request) -> Caller:
    return request.source.priority, request.source.caller
