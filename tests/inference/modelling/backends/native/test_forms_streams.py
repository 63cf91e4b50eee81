"""The normalisation of stream mixtures against the layer's own."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.backends.backend import NativeBackend
from inference.modelling.layers.sinkhorn_streams import SinkhornConnection
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec


def logits(rows: int, count: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, count, count, generator=torch.Generator().manual_seed(rows)) * scale


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (7, 3), (700, 4), (2, 1), (3, 17), (0, 4)])
@pytest.mark.parametrize(("iterations", "eps"), [(1, 0.01), (4, 0.01), (20, 1e-6), (20, 0.0)])
def test_mixtures_are_the_layers(rows: int, count: int, iterations: int, eps: float) -> None:
    layer = SinkhornConnection(SinkhornStreamsSpec(count, 2.0, eps, 1e-6, iterations), 8)
    values = logits(rows, count)
    found = torch.ops.blazr.balance_streams(values, iterations, eps)
    torch.testing.assert_close(found, layer.balance(values), rtol=1e-5, atol=1e-6)


def test_large_logits_and_views() -> None:
    layer = SinkhornConnection(SinkhornStreamsSpec(4, 2.0, 1e-6, 1e-6, 20), 8)
    values = logits(5, 4, 300.0).transpose(1, 2)
    before = values.clone()
    found = torch.ops.blazr.balance_streams(values, 20, 1e-6)
    torch.testing.assert_close(found, layer.balance(values), rtol=1e-4, atol=1e-6)
    assert found.isfinite().all() and torch.equal(values, before)


def test_a_layer_gets_the_kernel() -> None:
    layer = SinkhornConnection(SinkhornStreamsSpec(4, 2.0, 1e-6, 1e-6, 20), 8)
    NativeBackend(torch.device("cpu"), torch.float32).bind(layer)
    assert "balance" in vars(layer)
    values = logits(3, 4)
    assert torch.equal(layer.balance(values), torch.ops.blazr.balance_streams(values, 20, 1e-6))


@pytest.mark.parametrize("bad", [torch.zeros(2, 3), torch.zeros(2, 3, 4), torch.zeros(2, 3, 3, dtype=torch.float64)])
def test_other_shapes_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="balance_streams"):
        torch.ops.blazr.balance_streams(bad, 2, 0.0)
