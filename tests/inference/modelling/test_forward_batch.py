"""What a step's batch derives from its contexts: masks, and the form that native attention takes."""

from __future__ import annotations

import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk


def make_batch(*, chunks: bool) -> ForwardBatch:
    """Two decodes with contexts of 3 and 1 tokens; a chunk of 2 tokens behind 1, and a fresh one of 3."""
    rows = torch.zeros(2 + 5 * chunks, dtype=torch.int64)
    prefills = (
        PrefillChunk(2, 4, 1, 2, 3, torch.tensor([21, 22, 23])),
        PrefillChunk(4, 7, 0, 3, 4, torch.tensor([31, 32, 33])),
    )
    return ForwardBatch(
        input_ids=rows,
        positions=rows,
        slot_mapping=rows,
        state_slots=torch.tensor([1, 2, 3, 4][: 4 if chunks else 2]),
        num_decodes=2,
        prefills=prefills if chunks else (),
        decode_kv_slots=torch.tensor([[11, 12, 13], [15, 0, 0]]),
        decode_context_lens=torch.tensor([3, 1]),
        max_decode_context=3,
    )


def seen(batch: ForwardBatch) -> list[tuple[int, int, list[int]]]:
    """First row, number of rows and visible slots of each sequence."""
    sequences = batch.paged_sequences()
    return [
        (first, count, sequences.slots[begin : begin + total].tolist())
        for first, count, total, begin in sequences.table.tolist()
    ]


def test_decodes_alone_as_sequences():
    batch = make_batch(chunks=False)
    assert batch.num_tokens == 2
    assert seen(batch) == [(0, 1, [11, 12, 13]), (1, 1, [15])]
    assert batch.paged_sequences() is batch.decode_sequences(), "the layers share them"


def test_decodes_and_chunks_as_sequences():
    batch = make_batch(chunks=True)
    assert seen(batch) == [(0, 1, [11, 12, 13]), (1, 1, [15]), (2, 2, [21, 22, 23]), (4, 3, [31, 32, 33])]
    assert batch.paged_sequences() is batch.paged_sequences()
    assert batch.decode_state_slots.tolist() == [1, 2]


def test_a_decode_sees_its_context_within_the_window():
    batch = make_batch(chunks=False)
    assert batch.decode_mask(None).tolist() == [[True, True, True], [True, False, False]]
    assert batch.decode_mask(2).tolist() == [[False, True, True], [True, False, False]]
    assert batch.decode_mask(2) is batch.decode_mask(2)
