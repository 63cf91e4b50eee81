"""ScalingPass: the forward pass before the other one, from which an X-LoRA's classifier makes a step's scalings.

The pass computes the same tokens through the base, or through adapters that are all scaled alike. Its keys, values and
recurrent states aren't those of the second pass, so it has states of its own, at the same blocks and slots. So each
token of such a request is computed twice, and never again: PEFT, which keeps no states, computes the whole text twice
for each new token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.forward_batch import AdapterRows, ForwardBatch, LayerState


class Forward(Protocol):
    """A network's forward pass."""

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        """(T, h) rows behind the final norm; the states advance."""


class ScalingPass:
    """Computes the scalings of the rows that go through an X-LoRA.

    Args:
        network: The base.
        adapters: Its adapters.
        allocate: Makes states as the second pass has them.
    """

    def __init__(
        self, network: Forward, adapters: NetworkAdapters, allocate: Callable[[], Sequence[LayerState]]
    ) -> None:
        self._network, self._adapters, self._allocate = network, adapters, allocate

    def run(self, batch: ForwardBatch) -> AdapterRows:
        """The adapters of a step's rows, with the scalings of those that go through an X-LoRA.

        Args:
            batch: Of the step; has adapters.
        """
        rows = batch.adapters
        assert rows is not None
        classifiers = {slot: found for slot in rows.present if (found := self._adapters.classifier(slot)) is not None}
        if not classifiers:
            return rows
        sequences = [number for number, slot in enumerate(rows.slots_of_sequences(batch)) if slot in classifiers]
        chosen = batch.rows_of(sequences)
        first = {slot: found.first_scalings(len(chosen)) for slot, found in classifiers.items()}
        own = AdapterRows(rows.slots[chosen], tuple(classifiers), is_eager=True, scalings=first)
        is_base = not any(found.reads_adapted_rows for found in classifiers.values())
        if self._adapters.scaling_states is None:
            self._adapters.scaling_states = self._allocate()
        with self._adapters.running(None if is_base else own):
            hidden = self._network(batch.part(sequences), self._adapters.scaling_states)
        scalings = {}
        for slot, found in classifiers.items():
            mine = own.rows_of(slot)
            values = found.scalings(hidden[mine])
            scalings[slot] = values.new_zeros(len(rows.slots), *values.shape[1:]).index_copy_(0, chosen[mine], values)
        return replace(rows, scalings=scalings)
