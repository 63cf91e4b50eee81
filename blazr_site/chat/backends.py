"""The models that a chat can talk to: those of a server, or one that is loaded in this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from blazr_site.chat.conversation import EFFORT, Conversation
from blazr_site.server_client import ServerClient
from inference.errors import BlazrError, InvalidRequest, Unavailable
from inference.llm.outputs import OutputDelta
from inference.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inference.llm.llm import LLM

MAX_STEP_S = 60.0


class Backend(Protocol):
    """Where outputs come from."""

    place: str
    """For people: the server's URL, or that it is this process."""

    def models(self) -> list[str]:
        """Return the names that ``choose`` takes, as far as they are known."""
        ...

    def choose(self, model: str | None) -> str:
        """Use a model from now on, or the first one; returns its name.

        Raises:
            BlazrError: There is no such model, or it can't be loaded.
        """
        ...

    def stream(self, conversation: Conversation) -> Iterator[OutputDelta]:
        """Yield the next message. Closing the iterator, as Ctrl-C does, ends it.

        Raises:
            BlazrError: The message can't be generated.
        """
        ...

    def close(self) -> None: ...


class ServerModels:
    """The models of a server."""

    def __init__(self, client: ServerClient) -> None:
        self.place = client.server.url
        self._client = client

    def models(self) -> list[str]:
        """Return the names of the models that the key may use."""
        try:
            return [str(item["id"]) for item in self._client.json("GET", "/v1/models")["data"]]
        except (KeyError, TypeError):
            raise InvalidRequest(f"{self.place} is no server of OpenAI's API; check --server.") from None

    def choose(self, model: str | None) -> str:
        """Check that the server has the model; it loads with the first message."""
        names = self.models()
        if model is None and names:
            return names[0]
        if model in names:
            return model
        shown = f"it has {', '.join(names[:20])}" if names else "it has none that this key may use"
        raise InvalidRequest(
            f"{self.place} has no model {str(model)[:120]!r}: {shown}. --local loads a model in this process.",
            param="model",
        )

    def stream(self, conversation: Conversation) -> Iterator[OutputDelta]:
        """Stream a chat completion."""
        body = {
            "model": conversation.model,
            "messages": conversation.request_messages(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **conversation.parameters,
        }
        for chunk in self._client.events("/v1/chat/completions", body):
            try:
                found = list(_deltas(chunk))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise Unavailable(
                    f"{self.place} sent a piece of an answer that isn't one of OpenAI's API; check --server."
                ) from None
            yield from found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _deltas(chunk: Mapping[str, Any]) -> Iterator[OutputDelta]:
    """Yield what a chunk of a chat completion has; a chunk of another form raises errors of Python."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
        if not isinstance(text, str) or not isinstance(reasoning, str):
            raise TypeError
        if text or reasoning or choice.get("finish_reason"):
            yield OutputDelta(text=text, reasoning=reasoning, finish_reason=choice.get("finish_reason"))
    usage = chunk.get("usage")
    if usage:
        if not isinstance(usage["completion_tokens"], int):
            raise TypeError
        yield OutputDelta(usage=usage)


class LocalModel:
    """A model of this process.

    Args:
        load: Loads the model that a name stands for.
    """

    place = "this process"

    def __init__(self, load: Callable[[str], LLM], default: str) -> None:
        self._load = load
        self._default = default
        self._name: str | None = None
        self._llm: LLM | None = None
        self._running: threading.Thread | None = None

    def models(self) -> list[str]:
        """Return the name of the loaded model; paths and hub ids are names, too."""
        return [self._name] if self._name is not None else [self._default]

    def choose(self, model: str | None) -> str:
        """Load a model in place of the one before, whose memory is freed first."""
        name = model or self._default
        if name != self._name:
            self.close()
            self._llm = self._load(name)
            self._name = name
        return name

    def stream(self, conversation: Conversation) -> Iterator[OutputDelta]:
        """Generate in a thread: an interrupt of this one must not reach the engine in the middle of a step."""
        self._await_end()
        llm = self._llm
        if llm is None:
            raise InvalidRequest("no model is loaded; choose one with /model NAME.")
        parameters = dict(conversation.parameters)
        effort = parameters.pop(EFFORT, None)
        params = SamplingParams.from_dict(parameters)
        options = {} if effort is None else {EFFORT: effort}
        found: queue.SimpleQueue[OutputDelta | BaseException | None] = queue.SimpleQueue()
        is_stopped = threading.Event()

        def generate() -> None:
            try:
                deltas = llm.stream(conversation.request_messages(), params, **options)
                with suppress(StopIteration):
                    while not is_stopped.is_set():
                        found.put(next(deltas))
                deltas.close()  # type: ignore[attr-defined]
            except BaseException as error:
                found.put(error)
            found.put(None)

        self._running = threading.Thread(target=generate, name="chat", daemon=True)
        self._running.start()
        try:
            while (item := found.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            is_stopped.set()

    def close(self) -> None:
        """Free the model."""
        self._await_end()
        llm, self._llm, self._name = self._llm, None, None
        if llm is not None:
            llm.close()

    def _await_end(self) -> None:
        """Wait until the thread of a message that was stopped has left the engine."""
        if self._running is not None:
            self._running.join(MAX_STEP_S)
            if self._running.is_alive():
                raise BlazrError(f"the model has computed one step for {MAX_STEP_S:g} s; end the program and retry.")
            self._running = None
