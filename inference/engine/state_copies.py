"""StateCopies: copy saved states into and out of an engine's states, beside its steps.

A state of half a gigabyte takes a tenth of a second to copy, and seconds where the machine has to find the memory
first. On a CPU a thread copies, so that the engine's other requests go on meanwhile; on a device the engine's own
thread does, as its stream orders the copy between the steps. A request whose state is copied keeps its blocks and its
slot, and has no part in the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.running_request import Request
from inference.engine.saved_state import CopyCancelled, SavedState, read_state, write_state


@dataclass(slots=True, eq=False)
class StateCopy:
    """One copy.

    Attributes:
        request: Whose state it is.
        cancelled: Set when the request has ended; the copy ends soon after.
        result: The state that was read out; None: one was written.
    """

    request: Request
    cancelled: threading.Event = field(default_factory=threading.Event)
    result: Future[SavedState | None] = field(default_factory=Future)


class StateCopies:
    """The copies under way; used by the engine's thread only.

    Args:
        access: The engine's state tensors.
        in_background: Whether a thread copies; otherwise a copy is done when its call returns.
    """

    def __init__(self, access: StateAccess, *, in_background: bool) -> None:
        self._access = access
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state-copies") if in_background else None
        self._copies: dict[Request, StateCopy] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._copies

    def __bool__(self) -> bool:
        return bool(self._copies)

    def read(self, request: Request, blocks: Sequence[int], slot: int, token_ids: Sequence[int]) -> None:
        """Copy the state of a request out; see ``read_state``."""
        self._begin(request, lambda check: read_state(self._access, blocks, slot, token_ids, check))

    def write(self, request: Request, blocks: Sequence[int], slot: int, state: SavedState) -> None:
        """Copy a state into a request's blocks and slot; see ``write_state``."""
        self._begin(request, lambda check: write_state(self._access, blocks, slot, state, check))

    def _begin(self, request: Request, copy: Callable[[Callable[[], None]], SavedState | None]) -> None:
        entry = self._copies[request] = StateCopy(request)

        def check() -> None:
            if entry.cancelled.is_set():
                raise CopyCancelled

        def run() -> None:
            try:
                entry.result.set_result(copy(check))
            except BaseException as error:
                entry.result.set_exception(error)

        if self._thread is None:
            run()
        else:
            self._thread.submit(run)

    def take_done(self) -> list[StateCopy]:
        """Return the copies that have ended since the last call."""
        done = [copy for copy in self._copies.values() if copy.result.done()]
        for copy in done:
            del self._copies[copy.request]
        return done

    def drop(self, request: Request) -> bool:
        """End the copy of a request, whose blocks others may use afterwards; False: it has none."""
        copy = self._copies.pop(request, None)
        if copy is None:
            return False
        copy.cancelled.set()
        wait([copy.result])  # as long as one block or slot takes
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until a copy has ended, or so long."""
        wait([copy.result for copy in self._copies.values()], timeout=timeout_s, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        """End all copies, and the thread."""
        for request in list(self._copies):
            self.drop(request)
        if self._thread is not None:
            self._thread.shutdown()
