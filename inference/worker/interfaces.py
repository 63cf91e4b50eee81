"""Define the interfaces of the model manager: a language model, its load plan, its presence in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from inference.engine.loop import LoopOwner
from inference.errors import BlazrError
from inference.values.messages import GenerateMessage, GenerationEvent

OnEvents = Callable[[list[GenerationEvent]], None]
OnAlone = Callable[[str], None]
Progress = Callable[[float, str], None]


class ServedLLM(LoopOwner[Any, GenerationEvent], Protocol):
    """The part of ``inference.llm.llm.LLM`` that the worker uses; the loop uses the inherited part."""

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt and output."""
        ...

    @property
    def adapters(self) -> Any:
        """The ``AdapterRegistry``; an ``InvalidRequest`` if the model is loaded without room for adapters."""
        ...

    def prepare(self, message: GenerateMessage, /) -> Any:
        """Apply the template, tokenise and check; thread-safe. The result has the ``request_id``."""
        ...

    def prepare_after(self, state: Any, message: GenerateMessage, /) -> Any:
        """Do the same for a request that goes on from a saved state."""
        ...

    def read_state(self, path: Path, source: str | None = None, /, *, adapter: str | None = None) -> Any:
        """Read a saved state of this model and adapter; messages call it ``source``."""
        ...

    def state_identity(self) -> object:
        """Return what a saved state must agree with; the first call may read all weights."""
        ...

    def state_bytes(self, num_tokens: int, /) -> int:
        """Return the bytes of the saved state of so many tokens."""
        ...

    def state_content(self, state: Any, /, *, model: str) -> Iterable[bytes | memoryview]:
        """Return the file of a saved state, piece by piece."""
        ...

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes of ``weights`` and ``states``."""
        ...

    def total_bytes(self) -> int:
        """Return the memory of weights and states."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the engine's counters, as plain values."""
        ...

    def close(self) -> None:
        """Free all memory; called after the loop has ended."""
        ...


class LoadSizes(NamedTuple):
    """Sizes for a plan, in place of the model's settings.

    Attributes:
        cache_bytes: Memory for states; None: as a load would choose it.
    """

    max_model_len: int
    max_num_seqs: int
    cache_bytes: int | None = None


class PlanLoad(Protocol):
    """Returns the load plan of a checkpoint; raises ``BlazrError`` if it can't be loaded."""

    def __call__(self, checkpoint_id: str, sizes: LoadSizes | None = None, /) -> LoadPlan:
        """Plan with the model's settings, or with ``sizes`` in their place."""
        ...


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load one checkpoint.

    Attributes:
        name: The served model name, for messages.
        needed_bytes: Maximum memory of the model.
        keep_alive_s: Seconds without a request after which the model is unloaded; -1: never.
        max_num_seqs: Maximum requests that the model's engine computes together.
        load: Loads the model; reports progress (share, stage).
        pinned: Whether the model stays until an order to unload it.
        adapter_bytes: Part of ``needed_bytes`` for LoRA adapters; 0: requests can't name any.
        sizes: The parts of ``needed_bytes``, for users.
        resized: Plans the same load with other sizes, without reading the checkpoint again.
    """

    name: str
    needed_bytes: int
    keep_alive_s: float
    max_num_seqs: int
    load: Callable[[Progress], ServedLLM]
    pinned: bool = False
    adapter_bytes: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    resized: Callable[[LoadSizes], LoadPlan] = field(kw_only=True)

    @property
    def max_in_engine(self) -> int:
        """Sequences of clients that the engine holds: a few wait there, so that no step has a free place."""
        return self.max_num_seqs + max(2, self.max_num_seqs // 4)


class Presence(Protocol):
    """Shows other processes which models are here; thread-safe, quick, never raises."""

    def advertise(self, checkpoint_id: str) -> None:
        """Announce a model that is loaded or loading, and take its messages unless they are paused."""
        ...

    def withdraw(self, checkpoint_id: str) -> bool:
        """Withdraw the announcement and take no more messages; return whether messages wait in the queue."""
        ...

    def pause(self, checkpoint_id: str) -> None:
        """Leave the model's messages in their queue, to other workers, until ``resume``."""
        ...

    def resume(self, checkpoint_id: str) -> None:
        """Take the model's messages again, if it is advertised."""
        ...

    def load_ended(self, checkpoint_id: str, error: BlazrError | None) -> None:
        """Record the result of a load, for users."""
        ...

    def run_alone(self, request_id: str) -> None:
        """Record which request runs alone in this worker; empty: none does."""
        ...

    def changed(self) -> None:
        """Write the next heartbeat soon: the description of the models has changed."""
        ...
