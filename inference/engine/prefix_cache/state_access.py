"""StateAccess: copy blocks and slots between state tensors, and to and from host memory.

A payload holds the bytes of all tensors of one block or slot, layer by layer. On a CPU the tensors are read as bytes
through numpy, because numpy copies small arrays faster than torch. On a device the bytes are concatenated there, so
that a payload is one copy and one wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import upload
from inference.modelling.forward_batch import LayerState
from inference.modelling.spec import ModelSpec

Payload = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Part:
    """One state tensor.

    Attributes:
        rows: The tensor's bytes, (physical slots, bytes of one entry): an array on the CPU, otherwise a tensor.
        row_bytes: Bytes of one entry.
    """

    rows: Any
    row_bytes: int


class StateAccess:
    """Read and write the model runner's state tensors.

    Args:
        spec: Specification with the state of each layer.
        layers: The state tensors of each layer.
        block_size: Tokens in one block.
        use_tensors: Use tensor operations even on a CPU.
    """

    def __init__(
        self, spec: ModelSpec, layers: Sequence[LayerState], block_size: int, *, use_tensors: bool = False
    ) -> None:
        self.block_size = block_size
        self._paged: list[_Part] = []
        self._fixed: list[_Part] = []
        for layer, tensors in zip(spec.layers, layers, strict=True):
            for part in layer.state():
                tensor = tensors[part.name]
                rows: Any = tensor.flatten(1).view(torch.uint8)
                if tensor.device.type == "cpu" and not use_tensors:
                    rows = rows.numpy()
                (self._paged if part.per == "token" else self._fixed).append(_Part(rows, tensor[0].nbytes))
        self.token_bytes = sum(part.row_bytes for part in self._paged)
        self.slot_bytes = sum(part.row_bytes for part in self._fixed)

    # --- within the tensors --------------------------------------------------------------------

    def copy_block(self, source: int, target: int, count: int) -> None:
        """Copy the first ``count`` tokens of a block into another block."""
        first, to = source * self.block_size, target * self.block_size
        for part in self._paged:
            part.rows[to : to + count] = part.rows[first : first + count]

    def copy_slot(self, source: int, target: int) -> None:
        """Copy a slot's states into another slot."""
        for part in self._fixed:
            part.rows[target] = part.rows[source]

    # --- to and from the host ------------------------------------------------------------------

    def read_block(self, block: int, count: int) -> Payload:
        """Return the state of a block's first ``count`` tokens; thread-safe."""
        first = block * self.block_size
        return _read(self._paged, slice(first, first + count), count)

    def write_block(self, block: int, payload: Payload, count: int) -> None:
        """Write the first ``count`` tokens of a payload into a block."""
        num_rows = len(payload) // self.token_bytes
        first = block * self.block_size
        _write(self._paged, slice(first, first + count), payload, num_rows, count)

    def read_slot(self, slot: int) -> Payload:
        """Return a slot's states; thread-safe."""
        return _read(self._fixed, slice(slot, slot + 1), 1)

    def write_slot(self, slot: int, payload: Payload) -> None:
        """Write a payload of ``read_slot`` into a slot."""
        _write(self._fixed, slice(slot, slot + 1), payload, 1, 1)


def _read(parts: Sequence[_Part], rows: slice, count: int) -> Payload:
    if parts and isinstance(parts[0].rows, torch.Tensor):
        found: Payload = torch.cat([part.rows[rows].reshape(-1) for part in parts]).cpu().numpy()
        return found
    payload = np.empty(count * sum(part.row_bytes for part in parts), np.uint8)
    at = 0
    for part in parts:
        size = count * part.row_bytes
        payload[at : at + size].reshape(count, part.row_bytes)[:] = part.rows[rows]
        at += size
    return payload


def _write(parts: Sequence[_Part], rows: slice, payload: Payload, num_rows: int, count: int) -> None:
    source: Any = payload
    if parts and isinstance(parts[0].rows, torch.Tensor):
        source = upload(np.array(payload), parts[0].rows.device)  # a copy, because arrays from files may be read-only
    at = 0
    for part in parts:
        size = num_rows * part.row_bytes
        part.rows[rows] = source[at : at + size].reshape(num_rows, part.row_bytes)[:count]
        at += size
