"""ForwardBatch: everything that one forward pass may read besides weights and states.

One pass computes T tokens of B sequences, prefill chunks and decodes together. Tokens lie flat, one
row each; the sequences that decode (exactly one token, with earlier tokens computed) come first, so
row i is sequence i for i < ``num_decodes``; the prefill chunks follow, each a run of rows. Built by
the model runner once per step; the layers share what they derive from it.

States: per-token state (keys, values, latents) of a token lies at its physical slot (``AttentionMetadata``) of each
layer's paged tensors, whose first axis is the slot; per-sequence state lies at ``state_slots[i]`` of each layer's slot
tensors.

Slot 0 of both kinds is scratch: padding reads and writes go there, no sequence owns it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

LayerState = dict[str, torch.Tensor]
"""State tensors of one layer by name (``StateTensor.name``); first axis: physical slot."""


@dataclass(slots=True)
class PrefillChunk:
    """Consecutive prompt tokens of one sequence.

    Attributes:
        start, stop: Its rows in the batch; ``stop - start`` tokens.
        context_len: Tokens of the sequence computed before this chunk; 0: the recurrent state starts
            at zero, whatever the slot holds.
        sequence: Index of the sequence in ``state_slots`` and in the attention metadata.
        state_slot: ``state_slots[sequence]`` as a Python number.
        whole_spans: Positions (start, stop) in the sequence of runs of its tokens that attend to each other both ways.
    """

    start: int
    stop: int
    context_len: int
    sequence: int
    state_slot: int
    whole_spans: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the sequence up to the chunk's end."""
        return self.context_len + self.stop - self.start


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Which cached tokens each sequence attends to: all up to the row's own.

    The token at position p of sequence i lies at the physical slot
    ``blocks[starts[i] + p // block_size] * block_size + p % block_size``. Kernels compute it where they read; layers
    in PyTorch index by ``slots``.

    Attributes:
        blocks: (n,) int32 block numbers, those of a sequence one after the other; empty if nothing is paged.
        starts: (B,) int64, where each sequence's blocks begin in ``blocks``.
        lengths: (B,) int64, tokens of each sequence up to the step's last, the new ones included; 0 in a padding row.
        first_rows: (B + 1,) int64, the first row of each sequence in the batch, and the number of rows.
        block_size: Tokens in one block; 0 if nothing is paged.
    """

    blocks: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    first_rows: torch.Tensor
    block_size: int
    _slots: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, init=False)
    _longest: list[int] = field(default_factory=list, init=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, read from ``lengths`` once a step, which waits for a device."""
        if not self._longest:
            self._longest.append(int(self.lengths.max()))
        return self._longest[0]

    def part(self, first: int, stop: int) -> AttentionMetadata:
        """The sequences from ``first`` to ``stop``, with rows from 0."""
        if (first, stop) == (0, len(self.starts)):
            return self
        rows = self.first_rows[first : stop + 1]
        return AttentionMetadata(
            self.blocks, self.starts[first:stop], self.lengths[first:stop], rows - rows[0], self.block_size
        )

    def slots(self, first: int, stop: int, longest: int | None = None) -> torch.Tensor:
        """The physical slots of some sequences' tokens, made once a step.

        Beyond a sequence's end the slot is 0, which holds finite values: a freed block may hold NaN of a failed
        request, and a masked weight of 0 times NaN is NaN.

        Args:
            first, stop: The sequences.
            longest: L, tokens of the longest of them; None: read from ``lengths``, which waits for a device.

        Returns:
            (stop - first, L) int64.
        """
        found = self._slots.get((first, stop))
        if found is None:
            starts, lengths = self.starts[first:stop, None], self.lengths[first:stop, None]
            longest = int(lengths.max()) if longest is None else longest
            size, columns = self.block_size, torch.arange(longest, device=starts.device)
            places = starts + columns[: -(-longest // size)]
            numbers = self.blocks[places.clamp_(max=len(self.blocks) - 1)].long()
            padded = (numbers.unsqueeze(2) * size + columns[:size]).flatten(1)[:, :longest]
            found = self._slots[first, stop] = padded.masked_fill(columns >= lengths, 0)
        return found


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """Rows of a step that have an embedding of their own, because they stand for a picture.

    Attributes:
        places: (n,) int64, the rows.
        values: (n, h), what enters the first layer there.
    """

    places: torch.Tensor
    values: torch.Tensor

    def merged(self, hidden: torch.Tensor) -> torch.Tensor:
        """``hidden`` (T, h) with these rows in their places."""
        return hidden.index_copy(0, self.places, self.values.to(hidden.dtype))

    def select(self, rows: torch.Tensor) -> EmbeddedRows:
        """The same for some rows of the step (ascending), which get numbers from 0 on."""
        is_there = torch.isin(self.places, rows)
        return EmbeddedRows(torch.searchsorted(rows, self.places[is_there]), self.values[is_there])


_NOTHING = torch.zeros(0, dtype=torch.int64)
UNPAGED = AttentionMetadata(_NOTHING.int(), _NOTHING, _NOTHING, _NOTHING, 0)
"""The metadata of a step in which no layer attends to cached tokens."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which adapter each row of a step goes through.

    Attributes:
        slots: (T,) int64, where the row's adapter is resident (``modelling.adapters``); 0: the row has none.
        present: The slots other than 0 that occur, ascending.
        is_eager: An adapter changes something that no recorded step has.
        scalings: (T, modules, adapters) float32 by slot of an X-LoRA: how much of each of its adapters a row gets.
    """

    slots: torch.Tensor
    present: tuple[int, ...]
    is_eager: bool = False
    scalings: Mapping[int, torch.Tensor] = field(default_factory=dict)
    _groups: dict[int, torch.Tensor] = field(default_factory=dict, init=False)

    def rows_of(self, slot: int) -> torch.Tensor:
        """(n,) int64 numbers of the rows of a slot, ascending."""
        if slot not in self._groups:
            self._groups[slot] = (self.slots == slot).nonzero().flatten()
        return self._groups[slot]

    def slots_of_sequences(self, batch: ForwardBatch) -> list[int]:
        """The slot of each sequence of the step."""
        first_rows = [*range(batch.num_decodes), *(chunk.start for chunk in batch.prefills)]
        slots: list[int] = self.slots[torch.tensor(first_rows, device=self.slots.device)].tolist()
        return slots

    def scalings_of(self, slot: int) -> torch.Tensor | None:
        """(n, modules, adapters) scalings of the rows of a slot; None: it has no X-LoRA."""
        found = self.scalings.get(slot)
        return None if found is None else found[self.rows_of(slot)]

    def select(self, rows: torch.Tensor) -> AdapterRows:
        """The same for some of the rows."""
        scalings = {slot: values.index_select(0, rows) for slot, values in self.scalings.items()}
        return AdapterRows(self.slots.index_select(0, rows), self.present, self.is_eager, scalings)

    def repeat(self, count: int, *, is_outer: bool) -> AdapterRows:
        """Each row ``count`` times: one behind the other, or (``is_outer``) all rows again and again."""
        if is_outer:
            slots = self.slots.repeat(count)
            scalings = {slot: values.repeat(count, 1, 1) for slot, values in self.scalings.items()}
        else:
            slots = self.slots.repeat_interleave(count)
            scalings = {slot: values.repeat_interleave(count, 0) for slot, values in self.scalings.items()}
        return AdapterRows(slots, self.present, self.is_eager, scalings)


@dataclass(slots=True)
class ForwardBatch:
    """One step's tokens.

    Attributes:
        input_ids: (T,) int64.
        positions: (T,) int64, from 0 in each sequence.
        slot_mapping: (T,) int64, physical slot for each token's paged state.
        state_slots: (B,) int64, state slot of each sequence, decodes first.
        num_decodes: Number of leading rows that are decodes.
        prefills: The chunks after them, in row order.
        attention: Where the cached tokens of each sequence are.
        rope_lengths: (T,) int64, only read by rotary embeddings whose frequencies depend on the sequence's
            length (``RopeSpec.depends_on_length``): for each row the number of tokens that its sequence had when
            its computation (re)started, or the row's position + 1 if that is more. None: position + 1.
        adapters: Which adapter each row goes through; None: no row has one.
        embedded: Rows that stand for pictures; None: all are tokens.
        shared: Values that layers derive from the batch once and share for the rest of the step (masks, cosines
            and sines), under keys of the deriving module.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    state_slots: torch.Tensor
    num_decodes: int
    prefills: tuple[PrefillChunk, ...]
    attention: AttentionMetadata = UNPAGED
    rope_lengths: torch.Tensor | None = None
    adapters: AdapterRows | None = None
    embedded: EmbeddedRows | None = None
    shared: dict[Hashable, Any] = field(default_factory=dict)

    def part(self, sequences: Sequence[int]) -> ForwardBatch:
        """Some of the sequences (ascending), with rows of their own and nothing shared yet."""
        rows, prefills, first_rows = self.rows_of(sequences), [], [0]
        by_sequence = {chunk.sequence: chunk for chunk in self.prefills}
        for number, sequence in enumerate(sequences):
            chunk = by_sequence.get(sequence)
            first_rows.append(first_rows[-1] + (1 if chunk is None else chunk.stop - chunk.start))
            if chunk is not None:
                prefills.append(replace(chunk, start=first_rows[-2], stop=first_rows[-1], sequence=number))
        device = self.input_ids.device
        index = torch.tensor(sequences, dtype=torch.int64, device=device)
        attention = self.attention
        if len(attention.starts):
            starts, lengths = attention.starts[index], attention.lengths[index]
            first = torch.tensor(first_rows, dtype=torch.int64, device=device)
            attention = AttentionMetadata(attention.blocks, starts, lengths, first, attention.block_size)
        return ForwardBatch(
            self.input_ids[rows],
            self.positions[rows],
            self.slot_mapping[rows],
            self.state_slots[index],
            sum(sequence < self.num_decodes for sequence in sequences),
            tuple(prefills),
            attention,
            None if self.rope_lengths is None else self.rope_lengths[rows],
            embedded=None if self.embedded is None else self.embedded.select(rows),
        )

    def rows_of(self, sequences: Sequence[int]) -> torch.Tensor:
        """(n,) int64 numbers of the rows of some sequences."""
        by_sequence = {chunk.sequence: range(chunk.start, chunk.stop) for chunk in self.prefills}
        rows = [row for one in sequences for row in by_sequence.get(one, range(one, one + 1))]
        return torch.tensor(rows, dtype=torch.int64, device=self.input_ids.device)

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.input_ids.shape[0])

    @property
    def decode_state_slots(self) -> torch.Tensor:
        """(num_decodes,) state slots of the decoding sequences."""
        return self.state_slots[: self.num_decodes]
