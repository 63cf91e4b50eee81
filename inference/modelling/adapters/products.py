"""DeltaTable: what the resident adapters add to one module's product, and the product of a step's rows with it.

On a CPU with the native library one operator adds all adapters (``src/adapters.cpp``): it reads where the factors of a
row's slot lie from a table, so that a recorded step serves whatever is resident. Elsewhere the rows of each adapter
are multiplied in turn, in PyTorch.
"""

from __future__ import annotations

import struct

import torch

from inference.modelling.adapters.deltas import ModuleDelta
from inference.modelling.forward_batch import AdapterRows

SLOT_FIELDS, TERM_FIELDS = 2, 6
"""Numbers of a slot in the table (gain, offset), and of each of its terms (A, B, rank, first row, rows, scale)."""


class DeltaTable:
    """The deltas of one module by slot.

    Args:
        num_slots: Slots of the network, besides 0.
        num_terms: Most terms that an adapter may have here.
        is_native: Whether the native operator adds them.
    """

    def __init__(self, num_slots: int, num_terms: int, *, is_native: bool) -> None:
        self.deltas: dict[int, ModuleDelta] = {}
        self.num_terms = num_terms
        # The native operator reads it; a recorded step holds this very tensor.
        self._table = torch.zeros(num_slots + 1, SLOT_FIELDS + num_terms * TERM_FIELDS, dtype=torch.int64)
        self._is_native = is_native

    def put(self, slot: int, delta: ModuleDelta) -> None:
        """Make a delta resident; its tensors must not move while it is."""
        self.deltas[slot] = delta
        if self._is_plain(delta):
            return  # all of it is computed in PyTorch
        row = [0] * self._table.shape[1]
        row[:SLOT_FIELDS] = [0 if part is None else part.data_ptr() for part in (delta.gain, delta.offset)]
        for number, term in enumerate(delta.terms):
            at = SLOT_FIELDS + number * TERM_FIELDS
            scale = struct.unpack("<q", struct.pack("<d", term.scale))[0]
            sizes = (term.a.shape[0], term.first_row, term.b.shape[1])
            row[at : at + TERM_FIELDS] = [term.a.data_ptr(), term.b.data_ptr(), *sizes, scale]
        self._table[slot] = torch.tensor(row, dtype=torch.int64)

    def take(self, slot: int) -> None:
        """Forget the delta of a slot, before its memory goes."""
        self._table[slot] = 0
        self.deltas.pop(slot, None)

    def _is_plain(self, delta: ModuleDelta) -> bool:
        """Whether PyTorch computes a delta, and not the native operator."""
        return not self._is_native or delta.whole is not None or delta.is_scaled

    def has_any(self, rows: AdapterRows) -> bool:
        """Whether an adapter of the step changes the module."""
        return any(slot in self.deltas for slot in rows.present)

    def of(self, rows: AdapterRows) -> list[tuple[int, ModuleDelta]]:
        """The deltas of a step, by slot."""
        return [(slot, self.deltas[slot]) for slot in rows.present if slot in self.deltas]

    def add(
        self, out: torch.Tensor, hidden: torch.Tensor, rows: AdapterRows, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """A module's result with the adapters of its rows, in the same memory.

        Args:
            out: (…, outputs), what the module gives.
            hidden: (…, inputs), what it read.
            rows: Of the step; the leading axes have one value for each, or whole copies of them.
            bias: That is in ``out``.
        """
        flat, read = out, hidden
        if out.dim() != 2:
            flat, read = out.view(-1, out.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
        if hidden.dim() != 2 or len(hidden) != len(rows.slots):
            rows = _rows_of(rows, hidden)
        if self._is_native and not rows.is_eager:
            torch.ops.blazr.add_adapters.default(flat, read, self._table, rows.slots, bias, self.num_terms)
            return out
        for slot, delta in self.of(rows):
            if self._is_plain(delta):
                chosen = rows.rows_of(slot)
                flat[chosen] = delta.changed(flat[chosen], read[chosen], bias, rows.scalings_of(slot))
        if self._is_native:
            torch.ops.blazr.add_adapters.default(flat, read, self._table, rows.slots, bias, self.num_terms)
        return out


def _rows_of(rows: AdapterRows, hidden: torch.Tensor) -> AdapterRows:
    """The rows of the flattened ``hidden``."""
    count, total = len(rows.slots), hidden.numel() // hidden.shape[-1]
    if total == count:
        return rows
    if total % count:
        raise ValueError(f"{total} rows can't be those of {count} tokens")
    return rows.repeat(total // count, is_outer=hidden.shape[0] != count)
