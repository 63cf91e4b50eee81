"""Attention of one query per sequence over paged contexts."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import AttentionMetadata
from inference.modelling.layers.attention import attend
from tests.gpu.compare import assert_close
from tests.inference.modelling.contexts import contexts_of

BLOCK_SIZE = 4


def make_contexts(lengths: list[int], device: torch.device) -> tuple[AttentionMetadata, list[torch.Tensor], int]:
    """Scattered blocks; also each sequence's slots in order, and the number of slots."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    numbers = 1 + torch.randperm(sum(counts) + 5)[: sum(counts)]
    starts = torch.tensor([0, *counts]).cumsum(0)[:-1]
    slots = []
    for start, length in zip(starts.tolist(), lengths, strict=True):
        positions = torch.arange(length)
        slots.append(numbers[start + positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
    contexts = contexts_of(slots, [1] * len(lengths), BLOCK_SIZE, device)
    return contexts, slots, (sum(counts) + 6) * BLOCK_SIZE


def garbage(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Unowned slots hold NaN, as a failed request would leave behind."""
    return torch.full(shape, torch.nan, dtype=dtype)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "window", "softcap"),
    [(4, 2, 16, None, None), (6, 1, 24, None, None), (3, 3, 20, 7, None), (34, 2, 16, None, 5.0), (4, 4, 64, 33, 2.0)],
)
def test_grouped_query(heads, kv_heads, width, window, softcap, dtype, device):
    from inference.modelling.backends.triton.attention import decode_attention

    lengths = [1, 37, 130]
    contexts, slots, num_slots = make_contexts(lengths, device)
    keys, values = garbage(num_slots, kv_heads, width, dtype=dtype), garbage(num_slots, kv_heads, width, dtype=dtype)
    for mine in slots:
        keys[mine] = torch.randn(len(mine), kv_heads, width).to(dtype)
        values[mine] = torch.randn(len(mine), kv_heads, width).to(dtype)
    # A slice of a wider matrix, as the layers hand it over.
    query = torch.randn(3, heads + 1, width).to(dtype)[:, :heads]
    found = decode_attention(
        query.to(device),
        keys.to(device),
        values.to(device),
        contexts,
        scale=0.3,
        sliding_window=window,
        softcap=softcap,
    )
    for row, mine in enumerate(slots):
        seen = mine if window is None else mine[-window:]
        wanted = attend(
            query[row].double().view(1, heads, 1, width),
            keys[seen].double().transpose(0, 1).unsqueeze(0),
            values[seen].double().transpose(0, 1).unsqueeze(0),
            scale=0.3,
            mask=None,
            softcap=softcap,
        )
        assert_close(found[row], wanted.view(heads, width), dtype)


def test_a_context_is_summed_alike_alone_and_in_company(device):
    from inference.modelling.backends.triton.attention import decode_attention

    lengths = [70, 9, 128]
    contexts, _, num_slots = make_contexts(lengths, device)
    keys, values = torch.randn(num_slots, 2, 16, device=device), torch.randn(num_slots, 2, 16, device=device)
    query = torch.randn(3, 4, 16, device=device)
    together = decode_attention(query, keys, values, contexts, scale=0.25)
    for row in range(3):
        one = slice(row, row + 1)
        lone = decode_attention(query[one], keys, values, contexts.part(row, row + 1), scale=0.25)
        assert torch.equal(lone, together[one])


def test_a_padding_row_gets_zeros_and_reads_nothing(device):
    from inference.modelling.backends.triton.attention import decode_attention

    cache = garbage(8, 1, 16, dtype=torch.float32).to(device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    contexts = AttentionMetadata(zero.int(), zero, zero, torch.arange(2, device=device), BLOCK_SIZE)
    found = decode_attention(torch.randn(1, 2, 16, device=device), cache, cache, contexts, scale=1.0)
    assert torch.equal(found.cpu(), torch.zeros(1, 2, 16))


@pytest.mark.parametrize(("heads", "rank", "rope"), [(2, 16, 8), (20, 48, 4)])
def test_latent(heads, rank, rope, dtype, device):
    from inference.modelling.backends.triton.attention import decode_latent_attention

    contexts, slots, num_slots = make_contexts([5, 90], device)
    cache = garbage(num_slots, rank + rope, dtype=dtype)
    for mine in slots:
        cache[mine] = torch.randn(len(mine), rank + rope).to(dtype)
    query = torch.randn(heads, 2, rank).to(dtype).transpose(0, 1)
    query_rope = torch.randn(2, heads, rope).to(dtype)
    found = decode_latent_attention(query.to(device), query_rope.to(device), cache.to(device), contexts, scale=0.2)
    for row, mine in enumerate(slots):
        rows = cache[mine].double()
        joint = torch.cat((query[row], query_rope[row]), -1).double()
        wanted = (joint @ rows.t() * 0.2).softmax(-1) @ rows[:, :rank]
        assert_close(found[row], wanted, dtype)
