"""RG-LRU: convolution, gates and recurrence of a step's rows."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.specs.linear import RGLRUSpec
from tests.gpu.recurrent_case import DTYPES, check_form, fill, make_batch, make_state, num_rows


def bound(layer: RGLRU, form):
    """The layer's form with the convolution's beside it, as a network has them."""
    from inference.modelling.backends.triton.conv import convolve

    def run(same, *arguments):
        layer.conv1d.convolve = lambda *rows: convolve(layer.conv1d, *rows)
        try:
            return form(same, *arguments)
        finally:
            del layer.conv1d.convolve

    return run


@pytest.mark.parametrize("rows_dtype", DTYPES)
@pytest.mark.parametrize("name", ["decodes", "chunks", "mixed"])
@pytest.mark.parametrize(("width", "blocks", "activation"), [(72, 3, "gelu_tanh"), (40, 1, "silu")])
def test_rows(width, blocks, activation, name, rows_dtype, device):
    from inference.modelling.backends.triton.rg_lru import mix_rg_lru

    layer, batch = RGLRU(RGLRUSpec(width, blocks, 4, activation), 16), make_batch(name)
    fill(layer)
    layer.decay.sub_(2.0)  # decays on both sides of one half
    state = make_state(layer.spec.state(), batch)
    projected = torch.randn(num_rows(batch), 2 * width).to(getattr(torch, rows_dtype))
    check_form(layer, bound(layer, mix_rg_lru), RGLRU.mix, [projected], state, batch, device)


def test_a_channel_that_keeps_everything(device):
    """With a gate of 0 the decay is 1 and nothing enters: no root of a number below 0."""
    from inference.modelling.backends.triton.rg_lru import mix_rg_lru

    layer, batch = RGLRU(RGLRUSpec(8, 1, 2), 16), make_batch("decodes")
    fill(layer)
    layer.decay_gate.weight.zero_()
    layer.decay_gate.bias.copy_(torch.tensor([-200.0, -80.0, -20.0, -18.0, -17.0, -16.0, -15.0, -14.0]))
    state = make_state(layer.spec.state(), batch)
    check_form(layer, bound(layer, mix_rg_lru), RGLRU.mix, [torch.randn(3, 16)], state, batch, device)
