"""Lightning attention by the kernels of Mamba-2: a row of many sequences, and chunks."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.specs.linear import LightningSpec
from inference.modelling.specs.parts import NormSpec
from tests.gpu.recurrent_case import check_form, fill, make_batch, make_state, num_rows


@pytest.mark.parametrize("name", ["decodes", "chunks", "mixed"])
@pytest.mark.parametrize(("heads", "width", "activation"), [(4, 16, "silu"), (3, 20, "relu")])
def test_rows(heads, width, activation, name, device):
    from inference.modelling.backends.triton.lightning import mix_lightning

    layer = LightningAttention(LightningSpec(heads, width, 0.7, NormSpec(), activation), 16)
    fill(layer)
    batch = make_batch(name)
    qkv = torch.randn(num_rows(batch), 3 * heads * width)
    state = make_state(layer.spec.state(), batch)
    check_form(layer, mix_lightning, LightningAttention.mix, [qkv], state, batch, device)
