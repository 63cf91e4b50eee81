"""Rotation of queries and keys, in one kernel with their norm and the cache's write."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.rotary import rotary_embedding, rotate, rotate_first
from inference.modelling.specs.parts import RopeSpec
from tests.gpu.compare import NORMS, assert_close, make_norm


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [16, 12, 0])
@pytest.mark.parametrize("norm", [None, NORMS[0], NORMS[1], NORMS[2]], ids=str)
def test_rotation_and_write(norm, rotary_dim, interleaved, dtype, device):
    from inference.modelling.backends.triton.rotary import rope_and_write

    heads, kv_heads, width = 3, 2, 16
    slots = torch.tensor([5, 0, 2])
    joint = torch.randn(3, heads + 2 * kv_heads, width).to(dtype)
    query, key, value = joint.split((heads, kv_heads, kv_heads), 1)
    weights = (None, None)
    if norm is not None:
        norms = [make_norm(norm, width, dtype) for _ in range(2)]
        query, key = (each(part) for each, part in zip(norms, (query, key), strict=True))
        weights = tuple(None if each.weight is None else each.weight.to(device) for each in norms)
    cos_sin = None
    if rotary_dim:
        rope = RopeSpec(10000.0, rotary_dim, interleaved)
        cos_sin = rotary_embedding(rope).cos_sin(torch.tensor([0, 3, 1000]))
        query, key = rotate_first(query, cos_sin, rope), rotate_first(key, cos_sin, rope)
        cos_sin = tuple(part.to(device) for part in cos_sin)
    caches = [torch.zeros(7, kv_heads, width, dtype=dtype, device=device) for _ in range(2)]
    found = rope_and_write(
        joint.to(device),
        cos_sin,
        slots.to(device),
        *caches,
        num_heads=heads,
        interleaved=interleaved,
        head_norm=norm,
        q_weight=weights[0],
        k_weight=weights[1],
    )
    for mine, wanted in zip(found, (query, key, value), strict=True):
        assert_close(mine, wanted, dtype)
    for cache, part in zip(caches, found[1:], strict=True):
        assert torch.equal(cache[[5, 2]], part[[0, 2]])
        # Slot 0 is scratch, and stays zero; so do the slots that no row has.
        assert not cache[[0, 1, 3, 4, 6]].any()


@pytest.mark.parametrize("interleaved", [False, True, None])
@pytest.mark.parametrize("norm", [None, NORMS[0], NORMS[2]], ids=str)
def test_latent_rotation_and_write(norm, interleaved, dtype, device):
    """``interleaved`` None: nothing is rotated."""
    from inference.modelling.backends.triton.rotary import latent_rope_and_write

    heads, rank, rope = 3, 20, 8
    slots = torch.tensor([4, 0])
    q_rope = torch.randn(2, heads, 5 + rope).to(dtype)[..., 5:]
    compressed = torch.randn(2, rank + rope).to(dtype)
    cos_sin = rotary_embedding(RopeSpec(500.0, rope, bool(interleaved))).cos_sin(torch.tensor([7, 31]))
    if interleaved is None:
        cos_sin = tuple(torch.full_like(part, one) for part, one in zip(cos_sin, (1.0, 0.0), strict=True))
    latent, k_rope = compressed.split((rank, rope), -1)
    weight = None
    if norm is not None:
        layer = make_norm(norm, rank, dtype)
        latent = layer(latent)
        weight = None if layer.weight is None else layer.weight.to(device)
    cache = torch.zeros(6, rank + rope, dtype=dtype, device=device)
    turned, rows = latent_rope_and_write(
        q_rope.to(device),
        compressed.to(device),
        None if interleaved is None else tuple(part.to(device) for part in cos_sin),
        slots.to(device),
        cache,
        interleaved=bool(interleaved),
        norm=norm,
        weight=weight,
    )
    assert_close(turned, rotate(q_rope, cos_sin, interleaved=bool(interleaved)), dtype)
    k_rope = rotate(k_rope.unsqueeze(1), cos_sin, interleaved=bool(interleaved)).squeeze(1)
    assert_close(rows, torch.cat((latent, k_rope), -1), dtype)
    assert torch.equal(cache[4], rows[0])
    assert not cache[[0, 1, 2, 3, 5]].any()
