"""Read the states that requests go on from, and store those that requests leave."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from inference.errors import BlazrError, EngineError, InvalidRequest, Unavailable
from inference.host.units import format_bytes
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.worker.interfaces import ServedLLM

logger = logging.getLogger(__name__)

MAX_STATE_BYTES = 512 << 20
"""Most bytes of one state, and of all that are read for requests at once: the engine's thread copies a state, and other
requests wait for that."""


class SavedStates:
    """The states that this worker's requests go on from or leave; thread-safe.

    Requests that go on from one state share its bytes, which are freed when the last of them has ended. States are
    written in a thread of their own, so that no engine waits for the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="states")

    def prepare(self, llm: ServedLLM, message: GenerateMessage) -> Any:
        """Return ``llm.prepare`` of a message, with the state that it names.

        Raises:
            InvalidRequest: The state is gone, another model's or too large.
            Unavailable: Requests with other states take all room.
            BlazrError: As ``llm.prepare``.
        """
        digest = message.get("state")
        prepared = llm.prepare(message) if digest is None else llm.prepare_after(self._state(llm, digest), message)
        if "saves_state" in message:
            num_tokens = len(prepared.saved_prompt.token_ids)
            num_bytes = llm.state_bytes(num_tokens)
            if num_bytes > MAX_STATE_BYTES:
                raise InvalidRequest(
                    f"the state of {num_tokens:,} tokens of this model takes {format_bytes(num_bytes)}, at most "
                    f"{format_bytes(MAX_STATE_BYTES)} are saved; give a shorter text.",
                    param="prompt",
                )
        return prepared

    def _state(self, llm: ServedLLM, digest: str) -> Any:
        from inference.files.store import file_path  # Django, which isn't set up when Celery imports this module

        with self._lock:  # a state is read once, however many requests come with it
            found = self._read.get((id(llm), digest))
            if found is None:
                path: Path = file_path(digest)
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    raise InvalidRequest("the state was deleted meanwhile; save it again.", param="state") from None
                used = sum(state.num_bytes for state in self._read.values())
                if used and used + size > MAX_STATE_BYTES:
                    raise Unavailable(
                        f"the states of running requests take {format_bytes(used)}, and {format_bytes(size)} more "
                        f"would exceed {format_bytes(MAX_STATE_BYTES)}; try again shortly.",
                        retry_after_s=5,
                    )
                found = self._read[id(llm), digest] = llm.read_state(path)
        return found

    def store(
        self,
        llm: ServedLLM,
        message: GenerateMessage,
        event: GenerationEvent,
        then: Callable[[GenerationEvent], object],
    ) -> None:
        """Store the state of a last event in the background, and pass on the event without it, or an error."""
        self._writer.submit(self._store, llm, message, event, then)

    def _store(
        self,
        llm: ServedLLM,
        message: GenerateMessage,
        event: GenerationEvent,
        then: Callable[[GenerationEvent], object],
    ) -> None:
        from django.db import close_old_connections  # Django, as above

        from inference.files.store import FileWriter  # Django
        from inference.states.services import StateFacts, state_create  # Django

        state = event.pop("state")
        error: BlazrError | None = None
        try:
            close_old_connections()
            order = message["saves_state"]
            writer = FileWriter()
            writer.write(llm.state_content(state, model=order["model"]))
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
            close_old_connections()
        if error is not None:
            members = ("request_id", "attempt", "index")
            event = {**{name: event[name] for name in members}, "type": "error", "error": error.to_dict()}  # type: ignore[literal-required,typeddict-item]
        then(event)

    def stop(self) -> None:
        """Write what is waiting, and end the thread."""
        self._writer.shutdown(wait=True)
