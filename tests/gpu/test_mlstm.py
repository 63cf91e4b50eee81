"""mLSTM: a row of many sequences in one launch, chunks by the layer's own method beside it."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.specs.linear import MLSTMSpec
from tests.gpu.recurrent_case import DTYPES, check_form, fill, make_batch, make_state, num_rows

SHAPES = [(4, 8, 16), (2, 12, 20), (1, 100, 130)]
"""Heads, width of a key, width of a value."""


@pytest.mark.parametrize("rows_dtype", DTYPES)
@pytest.mark.parametrize("name", ["decodes", "mixed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape, name, rows_dtype, device):
    from inference.modelling.backends.triton.mlstm import mix_mlstm

    layer, batch = MLSTM(MLSTMSpec(*shape, 15.0, 1e-6, 1e-6), 16), make_batch(name)
    fill(layer)
    spec, state, count = layer.spec, make_state(layer.spec.state(), batch), num_rows(batch)
    projected = torch.randn(count, 2 * spec.key_width + 2 * spec.value_width)
    rows = [part.to(getattr(torch, rows_dtype)) for part in (projected, 8 * torch.randn(count, 2 * spec.num_heads))]
    check_form(layer, mix_mlstm, MLSTM.mix, rows, state, batch, device)


def test_some_rows_of_the_memory_at_once(device, monkeypatch):
    """Wide memories are passed over in several turns, whose last may be shorter."""
    from inference.modelling.backends.triton import mlstm

    monkeypatch.setattr(mlstm, "TILE_VALUES", 128)
    layer, batch = MLSTM(MLSTMSpec(2, 12, 16, 15.0, 1e-6, 1e-6), 16), make_batch("decodes")
    fill(layer)
    rows, state = [torch.randn(3, 2 * 24 + 2 * 32), torch.randn(3, 4)], make_state(layer.spec.state(), batch)
    state["norm_state"] *= 50.0  # the divisor is the product, not its least value
    check_form(layer, mlstm.mix_mlstm, MLSTM.mix, rows, state, batch, device)
