"""AdapterRegistry: the LoRA adapters that a loaded model's requests may name, checked against the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from inference.engine.adapter import Adapter
from inference.engine.adapter_pool import AdapterPool
from inference.engine.engine import Engine
from inference.errors import InvalidRequest, UnknownModel
from inference.llm.merging import stored_shapes
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import AdapterPlan
from inference.modelling.lora.xlora_plan import XLoraPlan
from inference.modelling.spec import ModelSpec
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.adapter_tokenizer import check_tokenizer, comparable_file
from models_registry.detection.xlora_files import read_files

MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What is known of an adapter.

    Attributes:
        name: That requests give.
        digest: SHA-256 of its files' content.
        rank: Its greatest rank.
        targets: Last parts of the changed modules' names.
        is_dora: Whether it has DoRA's magnitudes.
        is_xlora: Whether it is an X-LoRA, whose requests have states beside the base's.
        base_model: Name of the base that it was trained on, as its files say.
        num_bytes: Memory that it takes while it is resident.
        is_resident: Whether it is in memory.
        num_requests: Requests that go through it now.
        last_used_at: Unix time at which something named it last; 0: it isn't in memory.
        is_pinned: It was loaded ahead of its requests, and stays until it is unloaded.
    """

    name: str
    digest: str
    rank: int
    targets: tuple[str, ...]
    is_dora: bool
    is_xlora: bool
    base_model: str
    num_bytes: int
    is_resident: bool = False
    num_requests: int = 0
    last_used_at: float = 0.0
    is_pinned: bool = False


class AdapterRegistry:
    """Adapters by name; may be called from any thread.

    Args:
        spec: Of the base.
        weight_files: Of the base.
        size_of: Memory that an adapter takes in the network.
        state_bytes: Memory of the states that X-LoRAs have together, beside the base's.
        tokenizer: The base's tokenizer.json or tokenizer.model; None: it has none, so that no adapter's is compared.
        pool: The resident adapters.
        budget_bytes: Memory for resident adapters; None: it isn't limited.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weight_files: Sequence[Path],
        *,
        size_of: Callable[[AdapterPlan | XLoraPlan], int],
        state_bytes: int,
        tokenizer: Path | None,
        pool: AdapterPool,
        budget_bytes: int | None = None,
    ) -> None:
        self._spec, self._weight_files = spec, tuple(weight_files)
        self._size_of, self._tokenizer, self._pool = size_of, tokenizer, pool
        self._budget_bytes, self._state_bytes = budget_bytes, state_bytes
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Adapter, AdapterFacts]] = {}
        self._pinned: dict[str, list[Future[None]]] = {}
        self._base: BaseModules | None = None

    def check(self, path: Path, name: str = "") -> AdapterFacts:
        """Check an adapter's files against the base, without reading its weights into the network.

        Raises:
            CheckpointError: They are broken, or don't fit; the message says what, where and what to do.
        """
        return self._read(path, name)[1]

    def add(self, name: str, path: Path) -> AdapterFacts:
        """Make an adapter known under a name, in place of another of that name, which doesn't stay for it any more.

        Raises:
            InvalidRequest: The name can't be one.
            CheckpointError: As ``check``.
        """
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequest(
                f"an adapter's name has 1 to {MAX_NAME_CHARS} printable characters, not {name[:40]!r}.", param="adapter"
            )
        found = self._read(path, name)
        with self._lock:
            replaced = self._known.get(name)
            self._known[name] = found
            if replaced is not None and replaced[0].digest != found[0].digest and self._unpin(name, replaced[0]):
                self._pool.evict(replaced[0])
        return found[1]

    def remove(self, name: str) -> None:
        """Forget a name; requests that run go on, and the adapter leaves the memory when the engine steps after them.

        Raises:
            UnknownModel: There is none.
        """
        with self._lock:
            if name not in self._known:
                raise self._unknown(name)
            adapter, _ = self._known.pop(name)
            is_free = self._unpin(name, adapter)
            if is_free or all(other.digest != adapter.digest for other, _ in self._known.values()):
                self._pool.evict(adapter)

    def pin(self, name: str) -> Future[None]:
        """Read an adapter into memory before a request names it; it stays until ``unpin``. The engine must step for it.

        Returns:
            Done once it is in memory; a ``BlazrError`` if it can't be read, or if pinned ones have all places.

        Raises:
            UnknownModel: There is none of that name.
            InvalidRequest: It takes more than all of the memory for adapters.
        """
        with self._lock:
            adapter = self._get(name)
            self._pool.check(adapter)
            found = self._pool.pin(adapter)
            live = [order for order in self._pinned.get(name, ()) if _is_live(order)]
            if not any(_is_pinned(order) for order in live):
                self._pinned[name] = [*live, found]
        return found

    def unpin(self, name: str) -> Future[None]:
        """Let an adapter leave the memory, after the requests that go through it. The engine must step for it.

        Returns:
            Done once it stays no longer than these requests, or than another name of the same files that is pinned.

        Raises:
            UnknownModel: There is none of that name.
        """
        with self._lock:
            adapter = self._get(name)
            self._unpin(name, adapter)
            if not self._has_pin(adapter.digest):
                return self._pool.evict(adapter)
        found: Future[None] = Future()
        found.set_result(None)
        return found

    def is_being_read(self, name: str) -> bool:
        """Whether an adapter's weights are being read into memory now; False, too, if there is none of that name."""
        with self._lock:
            found = self._known.get(name)
        return found is not None and self._pool.is_being_read(found[0])

    def get(self, name: str) -> Adapter:
        """The adapter of a name.

        Raises:
            UnknownModel: There is none.
        """
        with self._lock:
            return self._get(name)

    def facts(self) -> dict[str, AdapterFacts]:
        """All adapters by name."""
        uses = self._pool.uses()
        with self._lock:
            known = dict(self._known)
            pinned = {name for name, orders in self._pinned.items() if any(map(_is_pinned, orders))}
        return {
            name: replace(
                facts,
                is_resident=True,
                num_requests=use.num_requests,
                last_used_at=use.last_used_at,
                is_pinned=name in pinned,
            )
            if (use := uses.get(facts.digest)) is not None
            else facts
            for name, (_, facts) in known.items()
        }

    @property
    def budget_bytes(self) -> int | None:
        """Memory for resident adapters; None: it isn't limited."""
        return self._budget_bytes

    def reserved_bytes(self) -> int:
        """The budget, or without one the bytes of the adapters that are resident."""
        if self._budget_bytes is not None:
            return self._budget_bytes
        resident = [facts for facts in self.facts().values() if facts.is_resident]
        shared = self._state_bytes * max(0, sum(facts.is_xlora for facts in resident) - 1)
        return sum(facts.num_bytes for facts in resident) - shared

    # --- with the lock held

    def _get(self, name: str) -> Adapter:
        if name not in self._known:
            raise self._unknown(name)
        return self._known[name][0]

    def _unpin(self, name: str, adapter: Adapter) -> bool:
        """Forget that a name was pinned; returns whether it was, and no other name of the same files is."""
        orders = self._pinned.pop(name, ())
        return any(map(_is_live, orders)) and not self._has_pin(adapter.digest)

    def _has_pin(self, digest: str) -> bool:
        """Whether a name of the files is pinned, or waits to be."""
        return any(
            self._known[name][0].digest == digest and any(map(_is_live, orders))
            for name, orders in self._pinned.items()
        )

    def _unknown(self, name: str) -> UnknownModel:
        some = ", ".join(sorted(self._known)[:5]) or "none"
        return UnknownModel(f"the model has no adapter {name[:100]!r}; it has {some}.", param="adapter")

    def _read(self, path: Path, name: str) -> tuple[Adapter, AdapterFacts]:
        files = read_files(path)
        check_tokenizer(files, self._tokenizer)
        modified_ns = tuple(path.stat().st_mtime_ns for path in files.weight_files)
        plan = files.plan(self._base_modules())
        if isinstance(plan, AdapterPlan):  # an X-LoRA's plan has refused what can't be scaled
            plan.check_per_request()
        digest = files.digest()
        adapter = Adapter(digest, plan, files.weight_files, self._size_of(plan), modified_ns)
        facts = AdapterFacts(
            name,
            digest,
            plan.rank,
            plan.targets,
            is_dora=isinstance(plan, AdapterPlan) and plan.config.is_dora,
            is_xlora=adapter.is_xlora,
            base_model=files.config.base_model,
            num_bytes=adapter.num_bytes + (self._state_bytes if adapter.is_xlora else 0),
        )
        return adapter, facts

    def _base_modules(self) -> BaseModules:
        with self._lock:
            if self._base is None:
                self._base = BaseModules(self._spec, stored_shapes(self._spec, self._weight_files).__getitem__)
            return self._base


def _is_live(order: Future[None]) -> bool:
    """Whether an order to pin has succeeded, or still can."""
    return not order.done() or _is_pinned(order)


def _is_pinned(order: Future[None]) -> bool:
    return order.done() and not order.cancelled() and order.exception() is None


def make_registry(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    tokenizer: TokenizerSpec,
    resident: NetworkAdapters | None,
    engine: Engine,
    adapters: Mapping[str, Path],
) -> AdapterRegistry | None:
    """The registry of a model that was just loaded; None: it has no room for adapters.

    Args:
        resident: The network's adapters.
        adapters: Directories or files by name, which are added.

    Raises:
        InvalidRequest: There are adapters and no room for them.
        CheckpointError: One of them doesn't fit.
    """
    if resident is None or engine.adapters is None:
        if adapters:
            require_adapters(None)
        return None
    registry = AdapterRegistry(
        spec,
        weight_files,
        size_of=resident.size_of,
        state_bytes=engine.stats().state_bytes,
        tokenizer=comparable_file(tokenizer.path),
        pool=engine.adapters,
        budget_bytes=engine.config.adapter_bytes,
    )
    for name, given in adapters.items():
        registry.add(name, given)
    return registry


def require_adapters(registry: AdapterRegistry | None) -> AdapterRegistry:
    """The registry.

    Raises:
        InvalidRequest: There is none.
    """
    if registry is None:
        raise InvalidRequest(
            "the model is loaded without room for adapters; load it with max_adapters of at least 1.", param="adapter"
        )
    return registry
