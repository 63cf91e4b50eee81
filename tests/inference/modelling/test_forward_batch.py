"""Attention metadata: the slots of each sequence's tokens, and parts of a step's sequences."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import UNPAGED, AttentionMetadata, ForwardBatch, PrefillChunk
from tests.inference.modelling.contexts import contexts_of

SIZE = 4
BLOCKS = [[7, 2, 5], [1], [4, 9]]
LENGTHS = [10, 3, 8]


def make_metadata() -> AttentionMetadata:
    """Two decodes with contexts of 10 and 3 tokens, and a chunk of 6 tokens behind 2."""
    slots = [
        torch.tensor([number * SIZE + offset for number in own for offset in range(SIZE)][:length])
        for own, length in zip(BLOCKS, LENGTHS, strict=True)
    ]
    return contexts_of(slots, (1, 1, 6), SIZE)


def test_a_sequences_blocks_lie_one_after_the_other():
    metadata = make_metadata()
    assert metadata.blocks.tolist() == [7, 2, 5, 1, 4, 9] and metadata.blocks.dtype == torch.int32
    assert metadata.starts.tolist() == [0, 3, 4]
    assert metadata.first_rows.tolist() == [0, 1, 2, 8]


def test_slots_are_those_of_the_blocks_and_scratch_beyond_the_end():
    metadata = make_metadata()
    first = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]
    assert metadata.slots(0, 2).tolist() == [first, [4, 5, 6] + [0] * 7]
    assert metadata.slots(2, 3).tolist() == [[16, 17, 18, 19, 36, 37, 38, 39]]
    assert metadata.slots(1, 2, longest=3).tolist() == [[4, 5, 6]]
    assert metadata.slots(0, 2) is metadata.slots(0, 2), "the layers share them"


@pytest.mark.parametrize("length", range(1, 13))
def test_slots_of_any_length(length):
    slots = torch.tensor([block * SIZE + offset for block in (3, 1, 2) for offset in range(SIZE)])[:length]
    assert contexts_of([slots], (1,), SIZE).slots(0, 1)[0].tolist() == slots.tolist()


def test_a_part_has_its_own_rows():
    metadata = make_metadata()
    assert metadata.part(0, 3) is metadata
    chunk = metadata.part(2, 3)
    assert chunk.first_rows.tolist() == [0, 6]
    assert chunk.slots(0, 1).tolist() == metadata.slots(2, 3).tolist()
    assert metadata.part(0, 2).first_rows.tolist() == [0, 1, 2]


def test_a_chunk_ends_behind_its_context_and_its_rows():
    assert PrefillChunk(2, 8, 2, 2, 3).length == 8


def test_a_batch_without_paged_state():
    rows = torch.zeros(2, dtype=torch.int64)
    batch = ForwardBatch(rows, rows, rows, torch.tensor([1, 2, 3]), 2, ())
    assert batch.num_tokens == 2
    assert batch.decode_state_slots.tolist() == [1, 2]
    assert batch.attention is UNPAGED and not len(UNPAGED.blocks)
