"""What the model manager needs of the parts around it: a language model, a plan to load it, a way to be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.errors import BlazrError
from inference.values.messages import GenerateMessage, GenerationEvent

OnEvents = Callable[[list[GenerationEvent]], None]
OnFinished = Callable[[], None]
Progress = Callable[[float, str], None]


class ServedLLM(Protocol):
    """What the manager needs of ``inference.llm.llm.LLM``."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        ...

    def prepare(self, message: GenerateMessage, /) -> Any:
        """Template, tokenise, check; thread-safe. The result has the ``request_id``."""
        ...

    def total_bytes(self) -> int:
        """Memory of weights and states."""
        ...

    def stats(self) -> dict[str, Any]:
        """The engine's counters, as plain values."""
        ...

    def close(self) -> None:
        """Free everything; the loop has ended."""
        ...

    def add(self, prepared: Any, /) -> object:
        """For the loop."""
        ...

    def abort(self, request_id: str, /) -> bool:
        """For the loop."""
        ...

    def step(self) -> list[GenerationEvent]:
        """For the loop."""
        ...

    def has_unfinished(self) -> bool:
        """For the loop."""
        ...


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load one checkpoint.

    Attributes:
        name: The served model name, for messages.
        needed_bytes: Memory that the model will take at most.
        keep_alive_s: -1: for ever.
        max_num_seqs: Requests that its engine computes together.
        load: Does it; reports progress (share, stage).
        pinned: It stays until it is asked to go.
        sizes: What ``needed_bytes`` is made of, for people.
    """

    name: str
    needed_bytes: int
    keep_alive_s: float
    max_num_seqs: int
    load: Callable[[Progress], ServedLLM]
    pinned: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


class Presence(Protocol):
    """How the worker shows what it holds to the rest of the system; thread-safe, quick, never raises."""

    def appear(self, checkpoint_id: str) -> None:
        """The model is held (or loading): announce it and take its messages."""
        ...

    def vanish(self, checkpoint_id: str) -> bool:
        """It isn't held any more: withdraw, stop taking messages. Returns whether messages still wait for it."""
        ...

    def pause(self, checkpoint_id: str) -> None:
        """Leave its messages to other workers for now."""
        ...

    def resume(self, checkpoint_id: str) -> None:
        """Take its messages again."""
        ...

    def load_ended(self, checkpoint_id: str, error: BlazrError | None) -> None:
        """Note how the load went, for people."""
        ...

    def changed(self) -> None:
        """Something that people look at has changed."""
        ...
