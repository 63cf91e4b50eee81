"""Batches, states and the comparison for tests of recurrent layers' forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.specs.parts import StateTensor
from tests.gpu.compare import assert_close

DTYPES = ["float32", "float16", "bfloat16"]
"""Of rows; these kernels multiply no matrices, so that the interpreter has bfloat16 too."""
NUM_SLOTS, UNUSED = 7, 5
PADDING = 1
"""The decoding row that points to scratch."""
CHUNKS = (PrefillChunk(3, 4, 0, 3, 2), PrefillChunk(4, 25, 9, 4, 4), PrefillChunk(25, 27, 0, 5, 6))


def make_batch(name: str) -> ForwardBatch:
    """Three decodes (``decodes``), three chunks of 24 rows (``chunks``), or both (``mixed``); one row is padding."""
    empty = torch.zeros(0, dtype=torch.int64)
    slots, chunks = [3, 0, 1, *(chunk.state_slot for chunk in CHUNKS)], CHUNKS
    if name == "chunks":
        slots = slots[3:]
        chunks = tuple(
            replace(chunk, start=chunk.start - 3, stop=chunk.stop - 3, sequence=chunk.sequence - 3) for chunk in CHUNKS
        )
    elif name == "decodes":
        slots, chunks = slots[:3], ()
    return ForwardBatch(empty, empty, empty, torch.tensor(slots), 0 if name == "chunks" else 3, chunks)


def num_rows(batch: ForwardBatch) -> int:
    return batch.prefills[-1].stop if batch.prefills else batch.num_decodes


def make_state(parts: Sequence[StateTensor], batch: ForwardBatch) -> LayerState:
    """Random positive states: sums of weights are. Scratch is zero; what a new sequence's slot held is NaN."""
    state = {part.name: torch.rand(NUM_SLOTS, *part.shape) for part in parts}
    for tensor in state.values():
        tensor[0] = 0
        for chunk in batch.prefills:
            if not chunk.context_len:
                tensor[chunk.state_slot] = torch.nan
    return state


def fill(layer: nn.Module) -> None:
    """Random weights that keep the values near 1."""
    for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter) * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0))


def copied(state: LayerState, device: torch.device) -> LayerState:
    return {name: tensor.clone().to(device) for name, tensor in state.items()}


def check_form(
    layer: nn.Module, form: Callable[..., Any], method: Callable[..., Any], rows: Sequence[torch.Tensor],
    state: LayerState, batch: ForwardBatch, device: torch.device,
) -> None:  # fmt: skip
    """``form`` does on the device what ``method`` does in float32, and keeps sequences apart.

    Args:
        layer: With float32 parameters.
        form: The Triton form.
        method: The layer type's own method.
        rows: The arguments before the batch, in the dtype of the model.
        state: Before the step.
        batch: One of ``make_batch``.
        device: Where the form runs.
    """
    dtype, reference = rows[0].dtype, copied(state, torch.device("cpu"))
    wanted = _outputs(method(layer, *(part.float() for part in rows), batch, reference))
    there = replace(batch, state_slots=batch.state_slots.to(device))
    moved, on_device = copied(state, device), [part.to(device) for part in rows]
    layer.to(device)
    found = _outputs(form(layer, *on_device, there, moved))
    computed = torch.ones(num_rows(batch), dtype=torch.bool)
    computed[PADDING] = batch.num_decodes == 0
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert_close(one[computed.to(device)], other[computed], dtype)
    used = batch.state_slots[batch.state_slots != 0]
    for name, tensor in moved.items():
        assert_close(tensor[used.to(device)], reference[name][used], torch.float32)
        assert torch.equal(tensor[[0, UNUSED]].cpu(), state[name][[0, UNUSED]]), name
    _check_nan(layer, form, on_device, copied(state, device), there, found)


def _check_nan(
    layer: nn.Module, form: Callable[..., Any], rows: Sequence[torch.Tensor], state: LayerState, batch: ForwardBatch,
    clean: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """NaN in the rows of one sequence, and in scratch, changes no other sequence's."""
    ill = torch.zeros(num_rows(batch), dtype=torch.bool, device=rows[0].device)
    ill[slice(4, 25) if len(ill) == 27 else slice(0, 1)] = True
    rows = [torch.where(ill[:, None], torch.nan, part) for part in rows]
    for tensor in state.values():
        tensor[0] = torch.nan
    found = _outputs(form(layer, *rows, batch, state))
    for one, other in zip(found, clean, strict=True):
        assert bool(one[ill].isnan().any()) and torch.equal(one[~ill], other[~ill])


def _outputs(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
