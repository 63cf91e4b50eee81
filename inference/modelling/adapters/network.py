"""NetworkAdapters: the adapters that are resident in one network, and the rows of a step that go through them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import nn

from inference.modelling.adapters.deltas import ModuleDelta
from inference.modelling.adapters.forms import (
    ADAPTED,
    ActiveRows,
    Adapted,
    AdaptedEmbedding,
    AdaptedLatentAttention,
    adapt_latent_attention,
    copy_with,
)
from inference.modelling.adapters.loading import HEAD_ROLE, LoadedAdapter, load_adapter
from inference.modelling.adapters.products import DeltaTable
from inference.modelling.adapters.scaling_classifier import ScalingClassifier
from inference.modelling.adapters.xlora_loading import load_xlora
from inference.modelling.backends.native import library
from inference.modelling.backends.native.packing import NATIVE_DTYPES
from inference.modelling.forward_batch import AdapterRows, LayerState
from inference.modelling.layers.mla import HeadExpansion, MultiHeadLatentAttention
from inference.modelling.lora.plan import AdapterPlan
from inference.modelling.lora.xlora_plan import XLoraPlan
from inference.modelling.network import HybridForCausalLM


class NetworkAdapters:
    """The adapters of one network. ``load`` may be called from any thread; the rest belongs to the network's.

    Args:
        network: The base, loaded; its modules change their class as adapters need it.
        num_slots: Most adapters that are resident at once; their slots are 1 to this.

    Attributes:
        version: Grows whenever a module is adapted that was not before: steps recorded earlier don't know it.
        scaling_states: States of the first passes of X-LoRAs; None: there was none since the last one left.
    """

    def __init__(self, network: HybridForCausalLM, num_slots: int) -> None:
        self._network = network
        self.num_slots = num_slots
        self.version = 0
        self.scaling_states: Sequence[LayerState] | None = None
        weight = next(network.parameters())
        is_native = weight.device.type == "cpu" and weight.dtype in NATIVE_DTYPES
        self._is_native = is_native and library.is_available()
        self._active = ActiveRows()
        self._resident: dict[int, LoadedAdapter] = {}

    def load(self, plan: AdapterPlan | XLoraPlan, paths: Sequence[Path]) -> LoadedAdapter:
        """Read an adapter.

        Args:
            paths: Its file; of an X-LoRA the classifier's, then those of its adapters.

        Raises:
            CheckpointError: A file is broken, or changes what can't be changed per request.
        """
        if isinstance(plan, XLoraPlan):
            return load_xlora(plan, paths, self._network)
        return load_adapter(plan, paths[0], self._network)

    def size_of(self, plan: AdapterPlan | XLoraPlan) -> int:
        """Bytes that an adapter will take."""
        width = next(self._network.parameters()).dtype.itemsize
        if isinstance(plan, XLoraPlan):
            own = plan.num_values - sum(adapter.num_values for adapter in plan.adapters)
            return own * torch.float32.itemsize + sum(map(self.size_of, plan.adapters))
        total = plan.num_values * width
        for matrix in plan.matrices:
            place = matrix.place
            if isinstance(self._network.get_submodule(place.owner), HeadExpansion):
                total += place.num_rows * matrix.num_inputs * width
        return total

    @torch.inference_mode()
    def install(self, slot: int, adapter: LoadedAdapter) -> None:
        """Make an adapter resident in a free slot."""
        assert 1 <= slot <= self.num_slots and slot not in self._resident, slot
        self._resident[slot] = adapter
        expansions: dict[str, dict[str, ModuleDelta]] = defaultdict(dict)
        for name, delta in adapter.deltas.items():
            module = self._network.get_submodule(name.removesuffix(HEAD_ROLE))
            if isinstance(module, HeadExpansion):
                owner, _, leaf = name.rpartition(".")
                expansions[owner][leaf] = delta
            else:
                num_terms = 0 if delta.is_scaled else len(delta.terms)  # PyTorch adds what is scaled
                self._table(module, num_terms, is_head=name.endswith(HEAD_ROLE)).put(slot, delta)
        for owner, changed in expansions.items():
            layer = self._network.get_submodule(owner)
            if not isinstance(layer, AdaptedLatentAttention):
                layer = adapt_latent_attention(cast("MultiHeadLatentAttention", layer), self._active)
            matrices = {name: delta.matrix for name, delta in changed.items() if delta.matrix is not None}
            layer.copies[slot] = copy_with(layer, matrices)

    @torch.inference_mode()
    def remove(self, slot: int) -> None:
        """Forget the adapter of a slot; no step may go through it."""
        adapter = self._resident.pop(slot)
        if all(other.classifier is None for other in self._resident.values()):
            self.scaling_states = None
        for name in adapter.deltas:
            module = self._network.get_submodule(name.removesuffix(HEAD_ROLE))
            if isinstance(module, HeadExpansion):
                layer = self._network.get_submodule(name.rpartition(".")[0])
                cast("AdaptedLatentAttention", layer).copies.pop(slot, None)
                continue
            adapted = cast("Adapted", module)
            for table in (adapted.deltas, adapted.head_deltas):
                if table is not None:
                    table.take(slot)

    def is_eager(self, slot: int) -> bool:
        """Whether steps through a slot can't be recorded."""
        return self._resident[slot].is_eager

    def classifier(self, slot: int) -> ScalingClassifier | None:
        """What scales the adapters of a slot with an X-LoRA; None: it has another adapter."""
        return self._resident[slot].classifier

    @contextmanager
    def running(self, rows: AdapterRows | None) -> Iterator[None]:
        """Let the network's products add the adapters of these rows."""
        self._active.rows = rows
        try:
            yield
        finally:
            self._active.rows = None

    def _table(self, module: nn.Module, num_terms: int, *, is_head: bool) -> DeltaTable:
        """The table of a module, which is adapted if it isn't yet."""
        if type(module) in ADAPTED:
            module.__class__ = ADAPTED[type(module)]
            adapted = cast("Adapted", module)
            adapted.active, adapted.head_deltas = self._active, None
            adapted.deltas = self._new_table(num_terms)
        adapted = cast("Adapted", module)
        table = adapted.head_deltas if is_head else adapted.deltas
        if table is None or table.num_terms < num_terms:
            wider = self._new_table(num_terms)
            for slot, delta in ({} if table is None else table.deltas).items():
                wider.put(slot, delta)
            if is_head:
                cast("AdaptedEmbedding", module).head_deltas = wider
            else:
                adapted.deltas = wider
            table = wider
        return table

    def _new_table(self, num_terms: int) -> DeltaTable:
        self.version += 1
        return DeltaTable(self.num_slots, max(1, num_terms), is_native=self._is_native)
