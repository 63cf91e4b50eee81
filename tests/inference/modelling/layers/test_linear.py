"""Packed weights against the plain product."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.backends.backend import NativeBackend, choose_backend, pack_weights
from inference.modelling.layers.linear import Embedding, Linear

packable = pytest.mark.skipif(
    not choose_backend("cpu", torch.bfloat16).pack(Linear(8, 8).bfloat16()),
    reason="this processor has no bfloat16 products",
)


def make(out_features: int, in_features: int, bias: bool, dtype: torch.dtype = torch.bfloat16) -> Linear:
    generator = torch.Generator().manual_seed(out_features + in_features)
    layer = Linear(in_features, out_features, bias)
    layer.weight.data = (torch.randn(out_features, in_features, generator=generator) * in_features**-0.5).to(dtype)
    if layer.bias is not None:
        layer.bias.data = torch.randn(out_features, generator=generator).to(dtype)
    return layer


@packable
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out_features", "in_features"), [(96, 64), (33, 17), (1, 48), (1536, 576)])
def test_packed_product_equals_the_plain_one(out_features: int, in_features: int, bias: bool) -> None:
    layer = make(out_features, in_features, bias)
    weight = layer.weight.double()
    offset = None if layer.bias is None else layer.bias.double()
    assert choose_backend("cpu", torch.bfloat16).pack(layer)
    for rows in (1, 2, 7, 32, 129):
        hidden = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows)).bfloat16()
        exact = torch.nn.functional.linear(hidden.double(), weight, offset)
        # One rounding to bfloat16 (8 bits of mantissa) of a sum made in float32.
        torch.testing.assert_close(layer(hidden).double(), exact, rtol=2**-7, atol=2**-7)


@packable
def test_packing_frees_the_dense_weight_and_keeps_shapes() -> None:
    layer = make(24, 16, bias=True)
    assert pack_weights(torch.nn.Sequential(layer, make(4, 24, bias=False))) == 2
    assert layer.weight.numel() == 0
    assert layer(torch.zeros(0, 16, dtype=torch.bfloat16)).shape == (0, 24)
    assert layer(torch.zeros(2, 3, 16, dtype=torch.bfloat16)).shape == (2, 3, 24)
    assert not choose_backend("cpu", torch.bfloat16).pack(layer)


def test_float32_products_stay_float32() -> None:
    layer = make(24, 16, bias=True, dtype=torch.float32)
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    plain = layer(hidden)
    assert pack_weights(layer) == isinstance(choose_backend("cpu", torch.float32), NativeBackend)
    torch.testing.assert_close(layer(hidden), plain, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_embedding_gives_rows_and_logits_from_one_table(dtype: torch.dtype) -> None:
    table = torch.randn(50, 40, generator=torch.Generator().manual_seed(4)).to(dtype)
    ids, hidden = torch.tensor([49, 0, 7]), table[:3] * 0.5
    for is_head in (True, False):
        layer = Embedding(50, 40, is_head=is_head)
        layer.weight.data = table.clone()
        assert pack_weights(layer) == (is_head and isinstance(choose_backend("cpu", dtype), NativeBackend))
        assert torch.equal(layer(ids), table[ids])
        exact = hidden.double() @ table.double().T
        rounding = 2**-7 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(layer.logits(hidden).double(), exact, rtol=rounding, atol=4 * rounding)
