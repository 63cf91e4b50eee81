"""AdapterPool: which adapters are resident, within a count and a budget of bytes, and the requests that wait for one.

An adapter is read in a thread when the first request names it; other requests go on meanwhile. It stays resident while
a request uses it; of the others the one that has been unused for longest leaves when another one needs its place.
Requests wait in the order of their rank: none overtakes one that waits for a place, or that one could wait for ever.

Other threads may order an adapter to be read before a request names it, which pins it: it stays until another order
evicts it. A request whose adapter has no place beside the pinned ones fails, because no other request's end would help.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from operator import attrgetter

from inference.engine.adapter import Adapter
from inference.engine.failures import failure_of
from inference.engine.running_request import Request
from inference.errors import BlazrError, Conflict, InvalidRequest
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


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """What a resident adapter is used for.

    Attributes:
        num_requests: Running requests that go through it.
        last_used_at: Unix time at which a request or an order named it last.
    """

    num_requests: int
    last_used_at: float


@dataclass(frozen=True, slots=True)
class _Order:
    """What another thread has ordered: to pin an adapter, or to evict it.

    Attributes:
        done: Done once the adapter is resident, or once it is unpinned and has left unless requests go through it.
    """

    adapter: Adapter
    is_pin: bool
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Resident:
    """An adapter in a slot.

    Attributes:
        loading: The read, until it is done.
        users: Requests that go through it.
        last_use: Number of the last use among all.
        last_used_at: Unix time of it.
        is_leaving: It leaves as soon as no request goes through it.
    """

    slot: int
    adapter: Adapter
    loading: Future[LoadedAdapter] | None
    users: int = 0
    last_use: int = 0
    last_used_at: float = 0.0
    is_leaving: bool = False

    @property
    def is_being_read(self) -> bool:
        """Whether a thread has the slot's adapter in work."""
        loading = self.loading  # once: it may end while another thread looks
        return loading is not None and not loading.done()


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
    """The adapters of one engine; belongs to its thread, but for ``pin``, ``evict``,
    ``is_being_read``, ``uses`` and ``stats``.

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
        self._orders: deque[_Order] = deque()
        self._pins: list[_Order] = []
        self._pinned: set[str] = set()  # digests of those that stay until they are ordered to leave
        self._read_to_pin: set[str] = set()  # digests of those that are read for orders of ``_pins``
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

    def pin(self, adapter: Adapter) -> Future[None]:
        """Order an adapter to be read and to stay; any thread. The engine must step for it.

        Returns:
            Done once the adapter is resident; a ``BlazrError`` if it can't be read, or if pinned ones have all places.
        """
        return self._order(adapter, is_pin=True)

    def evict(self, adapter: Adapter) -> Future[None]:
        """Order an adapter to leave, after the requests that go through it; any thread. The engine must step for it.

        Returns:
            Done once it stays no longer than these requests.
        """
        return self._order(adapter, is_pin=False)

    def is_being_read(self, adapter: Adapter) -> bool:
        """Whether an adapter has a place that it is being read into; any thread."""
        item = self._resident.get(adapter.digest)
        return item is not None and item.is_being_read

    def has_work(self) -> bool:
        """Whether requests wait for adapters, orders are there, or an adapter can leave."""
        is_leaving = any(item.is_leaving and not item.users for item in self._resident.values())
        return is_leaving or bool(self._waiting or self._orders or self._pins)

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
        """Go through orders and waiting requests: begin reads while there are places; return requests that can run."""
        self._take_orders()
        placed, left = Placed(), list[Request]()
        broken: dict[str, BlazrError] = {}
        is_open = self._place_pins()
        for request in self._waiting:
            adapter = request.source.adapter
            assert adapter is not None
            if adapter.digest in broken:
                placed.failed.append((request, broken[adapter.digest]))
                continue
            item = self._find(adapter) if is_open else None
            if item is None and is_open and (full := self._full_of_pinned(adapter)) is not None:
                placed.failed.append((request, full))
            elif item is None:
                is_open = False
                left.append(request)
            elif item.is_being_read:
                left.append(request)
            elif (error := self._finish_load(item)) is not None:
                broken[adapter.digest] = error
                placed.failed.append((request, error))
            else:
                self._use(request, item)
                placed.ready.append(request)
        self._waiting = left
        for item in [item for item in self._resident.values() if _can_leave(item)]:
            if item.adapter.digest not in self._requested():
                self._remove(item)
        return placed

    def release(self, request: Request) -> None:
        """A request has ended, or waits no more."""
        item = self._in_use.pop(request, None)
        if item is not None:
            item.users -= 1
            item.last_used_at = time.time()
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

    def uses(self) -> Mapping[str, AdapterUse]:
        """What each resident adapter is used for, by digest; other threads may call it, too."""
        items = list(self._resident.items())
        return {digest: AdapterUse(item.users, item.last_used_at) for digest, item in items if item.loading is None}

    def close(self) -> None:
        """Cancel the orders, and wait for the thread."""
        for order in (*self._orders, *self._pins):
            order.done.cancel()
        self._thread.shutdown(cancel_futures=True)

    def _order(self, adapter: Adapter, *, is_pin: bool) -> Future[None]:
        order = _Order(adapter, is_pin)
        self._orders.append(order)
        return order.done

    def _take_orders(self) -> None:
        """Carry out the orders to evict, and let those to pin wait for their places."""
        while self._orders:
            order = self._orders.popleft()
            if order.is_pin:
                self._pins.append(order)
                continue
            if not order.done.set_running_or_notify_cancel():
                continue
            for pin in [pin for pin in self._pins if pin.adapter.digest == order.adapter.digest]:
                self._pins.remove(pin)
                _fail(pin, Conflict("the adapter was unloaded before it was read.", param="adapter"))
            self._pinned.discard(order.adapter.digest)
            item = self._resident.get(order.adapter.digest)
            if item is not None:
                item.is_leaving = True
                if _can_leave(item) and order.adapter.digest not in self._requested():
                    self._remove(item)
            order.done.set_result(None)

    def _place_pins(self) -> bool:
        """Begin the reads of adapters to pin, and pin those that are read; False: one waits for a place."""
        waiting, self._pins = [order for order in self._pins if not order.done.cancelled()], []
        # What is read for a cancelled order stays like any other.
        self._read_to_pin &= {order.adapter.digest for order in waiting}
        is_open = True
        for order in waiting:
            item = self._find(order.adapter) if is_open else None
            if item is None and is_open and (full := self._full_of_pinned(order.adapter)) is not None:
                _fail(order, full)
            elif item is None:
                is_open = False
                self._pins.append(order)
            elif item.is_being_read:
                self._read_to_pin.add(order.adapter.digest)
                item.is_leaving = False
                self._pins.append(order)
            elif (error := self._finish_load(item)) is not None:
                _fail(order, error)
            elif order.done.set_running_or_notify_cancel():
                self._pinned.add(order.adapter.digest)
                item.is_leaving = False
                self._record_use(item)
                order.done.set_result(None)
        return is_open

    def _is_pinned(self, item: _Resident) -> bool:
        return item.adapter.digest in self._pinned or item.adapter.digest in self._read_to_pin

    def _full_of_pinned(self, adapter: Adapter) -> BlazrError | None:
        """Why an adapter never gets a place beside the pinned ones; None: it does, once others have left."""
        pinned = [item.adapter for item in self._resident.values() if self._is_pinned(item)]
        together = self._bytes_of([*pinned, adapter])
        if len(pinned) < self._adapters.num_slots and (self._budget_bytes is None or together <= self._budget_bytes):
            return None
        places = f"{self._adapters.num_slots} place{'s' if self._adapters.num_slots > 1 else ''}"
        budget = "" if self._budget_bytes is None else f" of {format_bytes(self._budget_bytes)}"
        return Conflict(
            f"adapters that were loaded ahead ({len(pinned)}) leave no place for this one: the model has {places}"
            f"{budget} for adapters; unload one of them, or raise max_adapters.",
            param="adapter",
        )

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
        idle = [
            item for item in self._resident.values() if not (item.users or item.is_being_read or self._is_pinned(item))
        ]
        if not idle:
            return False
        # One that a waiting request needs leaves last: that request is behind the one that needs the place.
        victim = min(idle, key=lambda item: (item.adapter.digest in requested, item.last_use))
        self._remove(victim)
        self._num_evictions += 1
        return True

    def _remove(self, item: _Resident) -> None:
        if item.loading is None:
            self._adapters.remove(item.slot)
        self._free(item)

    def _requested(self) -> set[str]:
        """Digests of the adapters that requests and orders wait for."""
        found = {request.source.adapter.digest for request in self._waiting if request.source.adapter is not None}
        return found | {order.adapter.digest for order in self._pins}

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
        item.users += 1
        self._record_use(item)
        self._in_use[request] = item
        request.adapter_slot = item.slot

    def _record_use(self, item: _Resident) -> None:
        self._num_uses += 1
        item.last_use, item.last_used_at = self._num_uses, time.time()


def _can_leave(item: _Resident) -> bool:
    """Whether an adapter that was ordered to leave can: nobody goes through it, and no thread reads it."""
    return item.is_leaving and not item.users and not item.is_being_read


def _fail(order: _Order, error: BlazrError) -> None:
    if order.done.set_running_or_notify_cancel():
        order.done.set_exception(error)
