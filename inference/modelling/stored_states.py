"""StoredStates: run layers on recurrent states that are stored in bfloat16.

Layers compute in float32. Native kernels read bfloat16 states themselves, and round what they store. Other layers need
float32 states: their entries of the step's sequences are copied to float32 before the layer and rounded back behind it,
and the copies live for one layer. Either way there is one rounding, to the nearest, for each step and layer, whatever
the number of tokens, and the values are the same (but subnormal ones, which AVX512-BF16 rounds to 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.spec import ModelSpec

RunLayer = Callable[[ForwardBatch, LayerState], object]


class StoredStates:
    """Which state tensors of a network belong to sequences, and which layers need float32 copies of them.

    Args:
        spec: Specification of the network.
    """

    def __init__(self, spec: ModelSpec) -> None:
        parts = [[part for part in layer.state() if part.per == "sequence"] for layer in spec.layers]
        self._names = [tuple(part.name for part in own) for own in parts]
        self._recurrent = [frozenset(part.name for part in own if part.dtype == "state") for own in parts]
        self._probe = next(((number, min(names)) for number, names in enumerate(self._recurrent) if names), None)

    def states_to_copy(self, layers: Sequence[Layer], states: Sequence[LayerState]) -> list[tuple[str, ...]]:
        """For each layer the names of the states that it needs float32 copies of; none where it reads what is stored.

        Args:
            layers: The network's.
            states: Of the layers.
        """
        if self._are_exact(states):
            return [()] * len(layers)
        named = zip(layers, self._names, self._recurrent, strict=True)
        return [() if recurrent <= layer.bfloat16_states else names for layer, names, recurrent in named]

    def _are_exact(self, states: Sequence[LayerState]) -> bool:
        """Whether all states are float32."""
        if self._probe is None:
            return True
        number, name = self._probe
        return states[number][name].dtype == torch.float32


class StepEntries:
    """The entries of one step's sequences, side by side: sequence i has slot i + 1, and slot 0 is scratch as before.

    Args:
        batch: The step.

    Attributes:
        batch: The step with these slots.
    """

    def __init__(self, batch: ForwardBatch) -> None:
        slots = batch.state_slots
        self._slots = slots
        # Padding rows stay at scratch, which kernels neither read nor write.
        numbers = torch.arange(1, len(slots) + 1, device=slots.device) * (slots != 0)
        chunks = tuple(
            replace(chunk, state_slot=chunk.sequence + 1 if chunk.state_slot else 0) for chunk in batch.prefills
        )
        self.batch = replace(batch, state_slots=numbers, prefills=chunks, shared={})

    def run(self, layer: RunLayer, state: LayerState, names: Sequence[str]) -> None:
        """Run a layer on float32 copies of its entries, and store them again.

        Args:
            layer: Takes the step and the layer's state.
            state: The layer's state tensors.
            names: Those that belong to sequences.
        """
        entries = {name: self._widened(state[name]) for name in names}
        layer(self.batch, state | entries)
        for name, entry in entries.items():
            pool = state[name]
            pool.index_copy_(0, self._slots, entry[1:].to(pool.dtype))

    def _widened(self, pool: torch.Tensor) -> torch.Tensor:
        """Float32 copies of the sequences' entries behind a scratch slot of zeros."""
        stored = pool.index_select(0, self._slots)
        entries = stored.new_empty((len(stored) + 1, *stored.shape[1:]), dtype=torch.float32)
        entries[:1].zero_()
        entries[1:].copy_(stored)
        return entries
