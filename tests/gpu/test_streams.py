"""The normalisation of the matrices that mix residual streams."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.sinkhorn_streams import SinkhornConnection
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (5, 3), (2, 1), (2, 9)])
@pytest.mark.parametrize(("iterations", "eps"), [(1, 0.01), (4, 0.01), (20, 1e-6)])
def test_mixtures_are_the_layers(rows, count, iterations, eps, device):
    from inference.modelling.backends.triton.streams import balance_streams

    layer = SinkhornConnection(SinkhornStreamsSpec(count, 2.0, eps, 1e-6, iterations), 8)
    logits = torch.randn(rows, count, count) * 3
    found = balance_streams(logits.to(device), iterations, eps)
    torch.testing.assert_close(found.cpu(), layer.balance(logits), rtol=1e-4, atol=1e-6)
