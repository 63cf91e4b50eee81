"""Read the states that requests go on from, and store those that requests leave."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from inference.errors import BlazrError, EngineError, InvalidRequest, Unavailable
from inference.host.units import format_bytes
from inference.llm.state_header import MAX_SERVED_BYTES, MAX_SERVED_FILE_BYTES
from inference.values.messages import GenerateMessage, GenerationEvent, error_event
from inference.worker.interfaces import ServedLLM

logger = logging.getLogger(__name__)

MAX_READ_BYTES = 512 << 20
"""Most bytes of all states that are read for requests at once."""
MAX_WAITING_BYTES = 512 << 20
"""Most bytes of the states that wait to be stored, unless there is only one."""


_Key = tuple[int, str, str | None]
"""Identity of an LLM, digest of a state's file, and the adapter of the requests that go on from it."""


@dataclass(slots=True)
class _Reading:
    """A state that is being read.

    Attributes:
        num_bytes: Of its file.
        result: The state, or the error of reading it.
    """

    num_bytes: int
    result: Future[Any] = field(default_factory=Future)


class SavedStates:
    """The states that this worker's requests go on from or leave; thread-safe.

    Requests that go on from one state share its bytes, which are freed when the last of them has ended. States are
    written in a thread of their own, and nothing is read under the lock, which engines take: none waits for the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: WeakValueDictionary[_Key, Any] = WeakValueDictionary()
        self._reading: dict[_Key, _Reading] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._waiting_bytes = 0  # of the states that wait to be stored

    def _bytes_in_use(self) -> int:
        """Return the bytes of the states that requests go on from; the caller holds the lock."""
        read: int = sum(state.num_bytes for state in self._read.values())
        return read + sum(reading.num_bytes for reading in self._reading.values())

    def prepare(self, llm: ServedLLM, message: GenerateMessage) -> Any:
        """Return ``llm.prepare`` of a message, with the state that it names.

        Raises:
            InvalidRequest: The state is gone, another model's or too large.
            Unavailable: Requests with other states take all room, or too many states wait to be stored.
            BlazrError: As ``llm.prepare``.
        """
        digest = message.get("state")
        if digest is not None or "saves_state" in message:
            llm.state_identity()  # the first call may read all weights, for which no other model's states must wait
        prepared = llm.prepare(message) if digest is None else self._prepare_after(llm, digest, message)
        if "saves_state" in message:
            num_tokens = len(prepared.saved_prompt.token_ids)
            num_bytes = llm.state_bytes(num_tokens)
            if num_bytes > MAX_SERVED_BYTES:
                raise InvalidRequest(
                    f"the state of {num_tokens:,} tokens of this model takes {format_bytes(num_bytes)}, at most "
                    f"{format_bytes(MAX_SERVED_BYTES)} are saved; give a shorter text.",
                    param="prompt",
                )
            with self._lock:
                self._check_waiting(num_bytes)  # before anything is computed for it
        return prepared

    def _prepare_after(self, llm: ServedLLM, digest: str, message: GenerateMessage) -> Any:
        return llm.prepare_after(self._state(llm, digest, message.get("adapter")), message)

    def _state(self, llm: ServedLLM, digest: str, adapter: str | None) -> Any:
        """Return a state, which is read once, however many requests come with it."""
        from inference.files.store import file_path  # Django, which isn't set up when Celery imports this module

        key, path = (id(llm), digest, adapter), file_path(digest)
        with self._lock:
            found = self._read.get(key)
            if found is not None:
                return found
            reading, is_first = self._reading.get(key), False
            if reading is None:
                reading, is_first = self._begin(key, path), True
        if not is_first:
            return reading.result.result()
        try:
            found = _read_state(llm, path, adapter)
        except BaseException as error:
            self._end(key, error)
            raise
        self._end(key, found)
        return found

    def _begin(self, key: _Key, path: Path) -> _Reading:
        """Take room for a state that is to be read; the caller holds the lock."""
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise _deleted() from None
        if size > MAX_SERVED_FILE_BYTES:
            raise InvalidRequest(
                f"the state's file has {format_bytes(size)}, at most {format_bytes(MAX_SERVED_FILE_BYTES)} "
                "are read; save the state of a shorter text.",
                param="state",
            )
        used = self._bytes_in_use()
        if used and used + size > MAX_READ_BYTES:
            raise Unavailable(
                f"the states of running requests take {format_bytes(used)}, and {format_bytes(size)} more "
                f"would exceed {format_bytes(MAX_READ_BYTES)}; try again shortly.",
                retry_after_s=5,
            )
        found = self._reading[key] = _Reading(size)
        return found

    def _end(self, key: _Key, result: Any) -> None:
        """Hand a state that was read, or the error, to the requests that wait for it."""
        with self._lock:
            reading = self._reading.pop(key)
            if not isinstance(result, BaseException):
                self._read[key] = result
        if isinstance(result, BaseException):
            reading.result.set_exception(result)
        else:
            reading.result.set_result(result)

    def _check_waiting(self, num_bytes: int) -> None:
        """Refuse a state for which the disk is too slow; the caller holds the lock."""
        waiting = self._waiting_bytes
        if waiting and waiting + num_bytes > MAX_WAITING_BYTES:
            raise Unavailable(
                f"{format_bytes(waiting)} of states wait to be stored, and {format_bytes(num_bytes)} more would exceed "
                f"{format_bytes(MAX_WAITING_BYTES)}; try again shortly.",
                retry_after_s=5,
            )

    def store(
        self,
        llm: ServedLLM,
        message: GenerateMessage,
        event: GenerationEvent,
        then: Callable[[GenerationEvent], object],
    ) -> None:
        """Store the state of a last event in the background, and pass on the event without it, or an error."""
        state = event.pop("state")
        try:
            with self._lock:
                self._check_waiting(state.num_bytes)
                self._waiting_bytes += state.num_bytes
        except Unavailable as error:
            then(_failed(event, error))
            return
        self._writer.submit(self._store, llm, message, event, state, then)

    def _store(
        self,
        llm: ServedLLM,
        message: GenerateMessage,
        event: GenerationEvent,
        state: Any,
        then: Callable[[GenerationEvent], object],
    ) -> None:
        from django.db import close_old_connections  # Django, as above

        from inference.files.store import FileWriter  # Django
        from inference.states.services import StateFacts, state_create  # Django

        error: BlazrError | None = None
        try:
            close_old_connections()
            order = message["saves_state"]
            writer = FileWriter(expected_bytes=state.num_bytes)
            try:
                for piece in llm.state_content(state, model=order["model"]):
                    writer.write(piece)
                writer.flush()
            except BaseException:
                writer.discard()
                raise
            facts = StateFacts(
                order["model"], state.identity.weights, len(state.token_ids), state.conversation is not None
            )
            state_create(writer=writer, facts=facts, order=order, request_id=message["request_id"])
        except BlazrError as found:
            error = found
        except Exception:
            logger.exception("the state of request %s could not be stored", message["request_id"])
            error = EngineError("The state could not be stored because of an internal error.")
        finally:
            with self._lock:
                self._waiting_bytes -= state.num_bytes
            close_old_connections()
        then(event if error is None else _failed(event, error))

    def stop(self) -> None:
        """Write what is waiting, and end the thread."""
        self._writer.shutdown(wait=True)


def _read_state(llm: ServedLLM, path: Path, adapter: str | None) -> Any:
    try:
        # Clients know it by another name than its file's.
        return llm.read_state(path, "the state", adapter=adapter)
    except InvalidRequest:
        if not path.exists():
            raise _deleted() from None
        raise


def _deleted() -> InvalidRequest:
    return InvalidRequest("the state was deleted meanwhile; save it again.", param="state")


def _failed(event: GenerationEvent, error: BlazrError) -> GenerationEvent:
    """Return the event that ends a request with an error in place of ``event``."""
    return error_event(event["request_id"], event["attempt"], event["index"], error)
