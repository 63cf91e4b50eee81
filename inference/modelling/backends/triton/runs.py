# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Runs: the rows of a batch as kernels of row by row recurrences take them, one launch for each.

A kernel gets whole tensors, whose addresses have the same alignment in each step, and a run's place as numbers: chunks
begin anywhere and have any length, and neither may make Triton compile a kernel again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference.modelling.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class Run:
    """One row of each decoding sequence, or the rows of a chunk.

    Attributes:
        num_sequences: Sequences, whose rows follow each other.
        start: The first row.
        length: Rows of each sequence.
        slots: (num_sequences,) int64 state slots of decoding sequences; None: it is a chunk.
        slot: A chunk's state slot.
        fresh: The sequence starts with the chunk, from zero, whatever its slot holds.
    """

    num_sequences: int
    start: int
    length: int
    slots: torch.Tensor | None = None
    slot: int = 0
    fresh: bool = False


def batch_runs(batch: ForwardBatch) -> Iterator[Run]:
    """The decoding rows, if there are any, then each chunk."""
    if batch.num_decodes:
        yield Run(batch.num_decodes, 0, 1, batch.decode_state_slots)
    for chunk in batch.prefills:
        length = chunk.stop - chunk.start
        yield Run(1, chunk.start, length, slot=chunk.state_slot, fresh=chunk.context_len == 0)


@triton.jit
def state_slot(slots_ptr, slot, sequence, HAS_SLOTS: tl.constexpr):
    """The state slot of a sequence of a run: loaded for a decoding one, given for a chunk's."""
    if HAS_SLOTS:
        return tl.load(slots_ptr + sequence)
    return slot.to(tl.int64)
