"""Decode steps replayed without Python: on the CPU what ``cuda_graphs`` is on a GPU.

A number of rows that keeps coming back is recorded twice, from two steps with different contexts. If both recordings
are the same, later steps of that many rows run the program (``inference.modelling.backends.native.program``); if not,
they go on eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inference.modelling.backends.native.program import Program, Recording, record
from inference.modelling.forward_batch import ForwardBatch, LayerState

logger = logging.getLogger(__name__)

Forward = Callable[[ForwardBatch, Sequence[LayerState]], torch.Tensor]

STEPS_BEFORE_RECORDING = 2
"""Eager steps of a size before the first recording: layers make what they keep, and rare sizes cost nothing."""
MAX_ATTEMPTS = 4
"""Recordings of a size before it stays eager."""


@dataclass(slots=True)
class _Size:
    """What is known of one number of rows."""

    steps: int = 0
    attempts: int = 0
    first: Recording | None = None
    first_position: int = 0
    program: Program | None = None


class DecodePrograms:
    """Programs of one network, by number of rows.

    Args:
        forward: The network, all of it on native kernels.
        states: Of its layers.
    """

    def __init__(self, forward: Forward, states: Sequence[LayerState]) -> None:
        self._forward = forward
        self._states = states
        self._sizes: dict[int, _Size] = {}

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """(D, h) hidden rows of a batch that only decodes; the states advance."""
        size = self._sizes.setdefault(batch.num_decodes, _Size())
        if size.program is not None:
            return size.program.run(_inputs(batch))
        size.steps += 1
        if size.steps <= STEPS_BEFORE_RECORDING or size.attempts >= MAX_ATTEMPTS:
            return self._forward(batch, self._states)
        return self._record(size, batch)

    def _record(self, size: _Size, batch: ForwardBatch) -> torch.Tensor:
        first, position = size.first, int(batch.positions.max())
        if first is not None and position == size.first_position:
            return self._forward(batch, self._states)  # the same numbers would prove nothing
        hidden, recording = record(lambda: self._forward(batch, self._states), _inputs(batch))
        size.attempts += 1
        if first is None or not recording.same_as(first):
            size.first, size.first_position = recording, position
            if recording.obstacle is not None:
                logger.debug("decodes of %d rows stay eager: %s", batch.num_decodes, recording.obstacle)
                size.attempts = MAX_ATTEMPTS
            return hidden
        size.first = None
        try:
            size.program = Program(recording)
        except ValueError as error:
            logger.debug("decodes of %d rows stay eager: %s", batch.num_decodes, error)
            size.attempts = MAX_ATTEMPTS
        return hidden


def _inputs(batch: ForwardBatch) -> list[torch.Tensor]:
    """Every tensor that a decode on native layers reads."""
    attention = batch.attention
    inputs = [batch.input_ids, batch.positions, batch.slot_mapping, batch.state_slots]
    inputs += [attention.blocks, attention.starts, attention.lengths, attention.first_rows]
    if batch.rope_lengths is not None:
        inputs.append(batch.rope_lengths)
    if batch.adapters is not None:
        inputs.append(batch.adapters.slots)
    return inputs
