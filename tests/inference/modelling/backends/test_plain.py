"""oneDNN's packed weights and the row maxima of PyTorch alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.backends.backend import Backend
from inference.modelling.backends.plain import OneDnnPacked, onednn_serves, row_maxima
from inference.modelling.layers.linear import Embedding, Linear

CPU = torch.device("cpu")


@pytest.mark.skipif(not onednn_serves(CPU, torch.bfloat16), reason="oneDNN multiplies no bfloat16 on this processor")
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_dense_one(bias):
    layer = Linear(17, 33, bias).bfloat16()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    weight, offset = layer.weight.double(), None if layer.bias is None else layer.bias.double()
    assert Backend(CPU, torch.bfloat16).pack(layer)
    assert isinstance(layer.packed, OneDnnPacked) and not layer.packed.is_quantised and not layer.has_argmax
    hidden = torch.randn(2, 5, 17, generator=torch.Generator().manual_seed(2)).bfloat16()
    exact = functional.linear(hidden.double(), weight, offset)
    torch.testing.assert_close(layer(hidden).double(), exact, rtol=2**-7, atol=2**-7)
    assert layer.logits(hidden).dtype == torch.float32
    assert layer(hidden[:0]).shape == (0, 5, 33)


def test_only_bfloat16_matrices_on_the_cpu_are_packed():
    backend = Backend(CPU, torch.float32)
    assert not onednn_serves(CPU, torch.float32)
    assert not onednn_serves(torch.device("meta"), torch.bfloat16)
    assert not backend.pack(Linear(8, 8))
    assert not backend.pack(Embedding(8, 8, is_head=True).bfloat16()), "single rows are needed back"


def test_row_maxima_take_the_first_among_equals():
    places, values = row_maxima(torch.tensor([[2.0, 7.0, 7.0], [3.0, -1.0, 0.0]]))
    assert places.tolist() == [1, 0] and values.tolist() == [7.0, 3.0]
