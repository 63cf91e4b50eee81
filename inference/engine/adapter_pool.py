"""AdapterPool: which adapters are resident, within a count and a budget of bytes, and the requests that wait for one.

An adapter is read in a thread when the first request names it; other requests go on meanwhile. It stays resident while
a request uses it; of the others the one that has been unused for longest leaves when another one needs its place.
Requests wait in the order of their rank: none overtakes one that waits for a place, or that one could wait for ever.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from operator import attrgetter

from inference.engine.adapter import Adapter
from inference.engine.failures import failure_of
from inference.engine.running_request import Request
from inference.errors import BlazrError, InvalidRequest
from inference.host.units import format_bytes
from inference.modelling.adapters.loading import LoadedAdapter
from inference.modelling.adapters.network import NetworkAdapters

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class AdapterPoolStats:
    """Counters since the engine's creation, and gauges."""

    num_resident: int
    num_in_use: int
    num_waiting: int
    resident_bytes: int
    num_loads: int
    num_evictions: int


@dataclass(slots=True)
class _Resident:
    """An adapter in a slot.

    Attributes:
        loading: The read, until it is done.
        users: Requests that go through it.
        last_use: Number of the last use among all.
    """

    slot: int
    adapter: Adapter
    loading: Future[LoadedAdapter] | None
    users: int = 0
    last_use: int = 0

    @property
    def is_being_read(self) -> bool:
        """Whether a thread has the slot's adapter in work."""
        return self.loading is not None and not self.loading.done()


@dataclass(slots=True)
class Placed:
    """What a look at the waiting requests gave.

    Attributes:
        ready: Requests whose adapter is resident.
        failed: Requests whose adapter can't be read, with the error.
    """

    ready: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, BlazrError]] = field(default_factory=list)


class AdapterPool:
    """The adapters of one engine; belongs to its thread.

    Args:
        adapters: Of the engine's network.
        budget_bytes: Memory for resident adapters; None: only their number is limited.
        state_bytes: Memory of the states that the X-LoRAs among them have together, beside the engine's.
    """

    def __init__(self, adapters: NetworkAdapters, budget_bytes: int | None, state_bytes: int = 0) -> None:
        self._adapters = adapters
        self._budget_bytes = budget_bytes
        self._state_bytes = state_bytes
        self._resident: dict[str, _Resident] = {}
        self._free_slots = list(range(adapters.num_slots, 0, -1))
        self._waiting: list[Request] = []
        self._in_use: dict[Request, _Resident] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load-adapter")
        self._num_uses = self._num_loads = self._num_evictions = 0

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that can never be resident.

        Raises:
            InvalidRequest: It takes more than the budget.
        """
        budget, needed = self._budget_bytes, self._bytes_of([adapter])
        if budget is not None and needed > budget:
            raise InvalidRequest(
                f"the adapter takes {format_bytes(needed)}, adapter_bytes is {format_bytes(budget)}; raise it.",
                param="adapter",
            )

    def add(self, request: Request) -> None:
        """Let a request wait for its adapter."""
        insort(self._waiting, request, key=_rank)

    def has_waiting(self) -> bool:
        """Whether requests wait for adapters."""
        return bool(self._waiting)

    def await_load(self, timeout: float) -> None:
        """Wait for a read, if one is under way, unless one that a request waits for has ended."""
        requested = self._requested()
        loading = [
            item.loading
            for item in self._resident.values()
            if item.loading is not None and (item.is_being_read or item.adapter.digest in requested)
        ]
        if loading:
            wait(loading, timeout=timeout, return_when="FIRST_COMPLETED")

    def place(self) -> Placed:
        """Go through the waiting requests: begin reads while there are places, and return those that can run."""
        placed, left = Placed(), list[Request]()
        broken: dict[str, BlazrError] = {}
        is_open = True
        for request in self._waiting:
            adapter = request.source.adapter
            assert adapter is not None
            if adapter.digest in broken:
                placed.failed.append((request, broken[adapter.digest]))
                continue
            item = self._find(adapter) if is_open else None
            if item is None:
                is_open = False
                left.append(request)
            elif item.loading is not None and not item.loading.done():
                left.append(request)
            elif (error := self._finish_load(item)) is not None:
                broken[adapter.digest] = error
                placed.failed.append((request, error))
            else:
                self._use(request, item)
                placed.ready.append(request)
        self._waiting = left
        return placed

    def release(self, request: Request) -> None:
        """A request has ended, or waits no more."""
        item = self._in_use.pop(request, None)
        if item is not None:
            item.users -= 1
        elif request in self._waiting:
            self._waiting.remove(request)

    def stats(self) -> AdapterPoolStats:
        """Return the current counters and gauges; other threads may call it, too."""
        items = list(self._resident.values())  # at once: an adapter may come or leave while it is read
        return AdapterPoolStats(
            num_resident=sum(item.loading is None for item in items),
            num_in_use=sum(item.users > 0 for item in items),
            num_waiting=len(self._waiting),
            resident_bytes=self._bytes_of(item.adapter for item in items),
            num_loads=self._num_loads,
            num_evictions=self._num_evictions,
        )

    def users(self) -> Mapping[str, int]:
        """Number of running requests of each resident adapter, by digest; other threads may call it, too."""
        return {digest: item.users for digest, item in list(self._resident.items()) if item.loading is None}

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _find(self, adapter: Adapter) -> _Resident | None:
        """The adapter's place, whose read begins now if it has none; None: all places are in use."""
        item = self._resident.get(adapter.digest)
        if item is not None:
            return item
        while not self._free_slots or not self._fits(adapter):
            if not self._evict():
                return None
        loading = self._thread.submit(self._load, adapter)
        item = self._resident[adapter.digest] = _Resident(self._free_slots.pop(), adapter, loading)
        self._num_loads += 1
        return item

    def _load(self, adapter: Adapter) -> LoadedAdapter:
        adapter.check_unchanged()
        return self._adapters.load(adapter.plan, adapter.weights)

    def _fits(self, adapter: Adapter) -> bool:
        together = [adapter, *(item.adapter for item in self._resident.values())]
        return self._budget_bytes is None or self._bytes_of(together) <= self._budget_bytes

    def _bytes_of(self, adapters: Iterable[Adapter]) -> int:
        """Memory of adapters that are resident together."""
        total, has_states = 0, False
        for adapter in adapters:
            total += adapter.num_bytes
            has_states |= adapter.is_xlora
        return total + (self._state_bytes if has_states else 0)

    def _evict(self) -> bool:
        """Let the adapter go that has been unused for longest; False: all are in use."""
        requested = self._requested()
        # Of a read that has ended all requests may have left: it keeps no place either.
        idle = [item for item in self._resident.values() if not item.users and not item.is_being_read]
        if not idle:
            return False
        # One that a waiting request needs leaves last: that request is behind the one that needs the place.
        victim = min(idle, key=lambda item: (item.adapter.digest in requested, item.last_use))
        if victim.loading is None:
            self._adapters.remove(victim.slot)
        self._free(victim)
        self._num_evictions += 1
        return True

    def _requested(self) -> set[str]:
        """Digests of the adapters that requests wait for."""
        return {request.source.adapter.digest for request in self._waiting if request.source.adapter is not None}

    def _free(self, item: _Resident) -> None:
        del self._resident[item.adapter.digest]
        self._free_slots.append(item.slot)

    def _finish_load(self, item: _Resident) -> BlazrError | None:
        """Make an adapter resident whose read is done; returns why it couldn't be read."""
        if item.loading is None:
            return None
        loading, error = item.loading, None
        try:
            self._adapters.install(item.slot, loading.result())
        except BaseException as problem:
            error = failure_of(problem, "the adapter could not be read")
        if error is None:
            item.loading = None
        else:
            self._free(item)
        return error

    def _use(self, request: Request, item: _Resident) -> None:
        self._num_uses += 1
        item.users += 1
        item.last_use = self._num_uses
        self._in_use[request] = item
        request.adapter_slot = item.slot
