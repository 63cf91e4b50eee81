"""Start requests in their engines: callers take turns, and few threads tokenise the prompts.

A request waits until its model's engine has a place for it, and until a thread is free to tokenise its prompt. Models
take turns, then the callers of a model. Requests of clients come before those of jobs and batches, which have limits of
their own and don't wait for a place. A model and a caller use at most half of the threads, so that long prompts of one
don't delay the others. The waiting text is limited; beyond the limit a request is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inference.errors import QueueFull
from inference.host.caller_queues import CallerQueues
from inference.worker.resident import ActiveRequest

logger = logging.getLogger(__name__)

NUM_THREADS = 4
MAX_THREADS_EACH = 2
"""Most threads that prompts of one model, or of one caller, use at once."""
MAX_MODEL_CHARS = 64 << 20
MAX_CALLER_CHARS = 32 << 20
"""Most characters of prompts that wait: of one model, and of one caller of it."""
FEW_TOKENS = 4096
"""Most token ids of a prompt that is prepared in the caller's thread, because another thread would take longer."""
_SLOW_MEMBERS = ("echo", "state", "saves_state", "adapter")
"""Members of messages that take more than a moment: a text, a file of up to 512 MiB, a digest of all weights, the files
of an adapter that no request has named before."""


class NumPreparations(NamedTuple):
    """Numbers of one model's prompts that wait, and that are tokenised now."""

    waiting: int
    running: int


@dataclass(eq=False, slots=True)
class _Start:
    request: ActiveRequest
    num_chars: int
    max_in_engine: int
    is_waiting: bool = True

    @property
    def caller(self) -> str:
        return self.request.message.get("owner", "")

    @property
    def num_places(self) -> int:
        """Sequences of the request that take a place in the engine; jobs and batches have limits of their own."""
        return self.request.num_choices if self.request.is_interactive else 0


@dataclass(eq=False, slots=True)
class _ModelQueue:
    """The requests of one model.

    Attributes:
        clients, background: Waiting requests, in turns of callers.
        chars: Characters of the waiting requests of clients, by caller.
        num_open: Number of requests from ``add`` to ``remove``.
        num_in_engine: Number of sequences of clients' requests among them that don't wait.
    """

    clients: CallerQueues[_Start] = field(default_factory=CallerQueues)
    background: CallerQueues[_Start] = field(default_factory=CallerQueues)
    chars: dict[str, int] = field(default_factory=dict)
    num_open: int = 0
    num_preparing: int = 0
    num_in_engine: int = 0

    def turns(self, *, is_interactive: bool) -> CallerQueues[_Start]:
        return self.clients if is_interactive else self.background


class StartQueue:
    """Prepare requests in turns, from ``add`` to ``remove``; thread-safe.

    Args:
        prepare: Tokenises a request's prompt and passes the request to its engine; called in a thread.
    """

    def __init__(self, prepare: Callable[[ActiveRequest], None]) -> None:
        self._prepare = prepare
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prepare")
        self._lock = threading.Lock()
        self._models: OrderedDict[str, _ModelQueue] = OrderedDict()
        self._starts: dict[str, _Start] = {}
        self._num_free = NUM_THREADS
        self._preparing: dict[str, int] = {}  # by caller
        self._is_stopped = False

    def add(self, request: ActiveRequest) -> None:
        """Prepare a request when it is its turn; at once, in this thread, if that is quick and the engine has a place.

        Raises:
            QueueFull: Too much text waits already.
        """
        plan = request.resident.plan
        max_in_engine = 1 if plan is None else plan.max_in_engine
        start = _Start(request, _num_chars(request.message["prompt"]), max_in_engine)
        with self._lock:
            model = self._models.setdefault(request.message["model"], _ModelQueue())
            has_place = not model.clients.count(start.caller) and model.num_in_engine < max_in_engine
            is_here = _is_quick(request) and (has_place or not request.is_interactive)
            if is_here:
                start.is_waiting = False
                model.num_in_engine += start.num_places
            else:
                self._wait(model, start)
            model.num_open += 1
            self._starts[request.request_id] = start
        if is_here:
            self._prepare(request)
        else:
            self._dispatch()

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended, which may be the turn of another one; unknown ids are ignored."""
        with self._lock:
            start = self._starts.pop(request_id, None)
            if start is None:
                return
            request = start.request
            model = self._models[request.message["model"]]
            model.num_open -= 1
            if start.is_waiting:
                self._forget_waiting(model, start)
            else:
                model.num_in_engine -= start.num_places
            self._drop_if_empty(request.message["model"])
        self._dispatch()

    def num_preparations(self, checkpoint_id: str) -> NumPreparations:
        """Return the numbers of a model's prompts that wait, and that are tokenised now."""
        with self._lock:
            model = self._models.get(checkpoint_id)
            if model is None:
                return NumPreparations(0, 0)
            return NumPreparations(len(model.clients) + len(model.background), model.num_preparing)

    def waiting_ids(self, checkpoint_id: str) -> list[str]:
        """Return a model's waiting requests of clients, in the order of their starts."""
        with self._lock:
            model = self._models.get(checkpoint_id)
            return [] if model is None else [start.request.request_id for start in model.clients.in_turns()]

    def stop(self) -> None:
        """Prepare nothing more."""
        with self._lock:
            self._is_stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- with the lock held

    def _wait(self, model: _ModelQueue, start: _Start) -> None:
        caller, request = start.caller, start.request
        if request.is_interactive:
            own, every = model.chars.get(caller, 0), sum(model.chars.values())
            for limit, held, whose in ((MAX_CALLER_CHARS, own, "your"), (MAX_MODEL_CHARS, every, "all callers'")):
                if held and held + start.num_chars > limit:
                    raise QueueFull(
                        f"The prompt has {start.num_chars:,} characters, and {held:,} of {whose} prompts wait for this "
                        f"model already, at most {limit:,} may; try again later.",
                        retry_after_s=5,
                    )
            model.chars[caller] = own + start.num_chars
        model.turns(is_interactive=request.is_interactive).add(caller, start)

    def _forget_waiting(self, model: _ModelQueue, start: _Start) -> None:
        """Take out a request that waits no more."""
        caller, is_interactive = start.caller, start.request.is_interactive
        start.is_waiting = False
        model.turns(is_interactive=is_interactive).remove(caller, start)
        if is_interactive:
            model.chars[caller] -= start.num_chars
            if not model.clients.count(caller):
                del model.chars[caller]

    def _drop_if_empty(self, checkpoint_id: str) -> None:
        model = self._models[checkpoint_id]
        if not (model.num_open or model.num_preparing):
            del self._models[checkpoint_id]

    def _next(self) -> _Start | None:
        """Take the request that may be prepared now; None: all have to wait."""
        if not self._num_free or self._is_stopped:
            return None
        for is_interactive in (True, False):
            for checkpoint_id, model in self._models.items():
                if model.num_preparing >= MAX_THREADS_EACH:
                    continue
                start = next(self._candidates(model, is_interactive=is_interactive), None)
                if start is not None:
                    self._take(checkpoint_id, model, start)
                    return start
        return None

    def _candidates(self, model: _ModelQueue, *, is_interactive: bool) -> Iterator[_Start]:
        for caller, start in model.turns(is_interactive=is_interactive).heads():
            has_place = not is_interactive or model.num_in_engine < start.max_in_engine
            if has_place and self._preparing.get(caller, 0) < MAX_THREADS_EACH:
                yield start

    def _take(self, checkpoint_id: str, model: _ModelQueue, start: _Start) -> None:
        self._forget_waiting(model, start)
        self._models.move_to_end(checkpoint_id)
        model.num_in_engine += start.num_places
        model.num_preparing += 1
        self._num_free -= 1
        self._preparing[start.caller] = self._preparing.get(start.caller, 0) + 1

    # --- without the lock

    def _dispatch(self) -> None:
        while True:
            with self._lock:
                start = self._next()
                if start is None:
                    return
                self._threads.submit(self._run, start)

    def _run(self, start: _Start) -> None:
        """Prepare one request; runs in a thread of the pool."""
        try:
            self._prepare(start.request)
        except Exception:
            logger.exception("request %s could not be prepared", start.request.request_id)
        checkpoint_id, caller = start.request.message["model"], start.caller
        with self._lock:
            self._models[checkpoint_id].num_preparing -= 1
            self._drop_if_empty(checkpoint_id)
            self._num_free += 1
            self._preparing[caller] -= 1
            if not self._preparing[caller]:
                del self._preparing[caller]
        self._dispatch()


def _num_chars(value: Any) -> int:
    """Return the characters of all texts of a prompt."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_num_chars(item) for name, item in value.items() if name != "token_ids")
    if isinstance(value, list | tuple):
        return sum(map(_num_chars, value))
    return 0


def _is_quick(request: ActiveRequest) -> bool:
    message = request.message
    params = message["params"]
    return (
        0 < len(message["prompt"].get("token_ids", ())) <= FEW_TOKENS
        and not any(name in message for name in _SLOW_MEMBERS)
        and params.get("grammar") is None
        and params.get("n", 1) == 1
    )
