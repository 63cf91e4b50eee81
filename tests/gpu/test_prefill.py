"""Attention of a chunk over what was computed before it."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.attention import attend
from tests.gpu.compare import assert_close
from tests.inference.modelling.contexts import contexts_of


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "window", "softcap"),
    [(4, 2, 16, None, None), (3, 1, 24, None, 5.0), (2, 2, 20, 7, None), (4, 4, 64, 33, 2.0)],
)
@pytest.mark.parametrize(("count", "context"), [(5, 0), (1, 40), (70, 0), (40, 90)])
def test_later_chunks(count, context, heads, kv_heads, width, window, softcap, dtype, device):
    from inference.modelling.backends.triton.prefill import chunk_attention

    total, size = count + context, 4
    blocks = 1 + torch.randperm(total)[: -(-total // size)]
    slots = (blocks.unsqueeze(1) * size + torch.arange(size)).flatten()[:total]
    contexts = contexts_of([torch.arange(3), slots], (3, count), size, device).part(1, 2)
    # Slots of others hold NaN, as a failed request would leave behind.
    keys, values = (torch.full(((total + 1) * size, kv_heads, width), torch.nan, dtype=dtype) for _ in range(2))
    keys[slots] = torch.randn(total, kv_heads, width).to(dtype)
    values[slots] = torch.randn(total, kv_heads, width).to(dtype)
    # A slice of a wider matrix, as the layers hand it over.
    query = torch.randn(count, heads + 1, width).to(dtype)[:, :heads]
    found = chunk_attention(
        query.to(device), keys.to(device), values.to(device), contexts.blocks, contexts.starts, context, size,
        scale=0.3, sliding_window=window, softcap=softcap,
    )  # fmt: skip
    own, columns = torch.arange(context, total).unsqueeze(1), torch.arange(total)
    hidden = columns > own
    if window is not None:
        hidden |= columns <= own - window
    wanted = attend(
        query.double().transpose(0, 1).unsqueeze(0),
        keys[slots].double().transpose(0, 1).unsqueeze(0),
        values[slots].double().transpose(0, 1).unsqueeze(0),
        scale=0.3,
        mask=torch.zeros(count, total, dtype=torch.float64).masked_fill_(hidden, -torch.inf),
        softcap=softcap,
    )
    assert found.dtype == dtype
    assert_close(found, wanted.squeeze(0).transpose(0, 1), dtype)
