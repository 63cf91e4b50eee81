"""HybridLayer: the sum of a layer, written out beside it with mixers that need no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inference.modelling.hybrid_layer import HybridLayer
from inference.modelling.layers.mlp import MLP as MLPMixer
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import NormSpec

HIDDEN = 8
NORM = NormSpec(eps=1e-6)
MLP = MLPSpec(16)


class Twice(nn.Module):
    """Stands for a token mixer."""

    def forward(self, rows: torch.Tensor, *_: Any) -> torch.Tensor:
        return 2 * rows


def filled(layer: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def make(**fields: Any) -> HybridLayer:
    spec = LayerSpec(**{"token_norm": NORM, "channel_mixer": MLP, "channel_norm": NORM, **fields})
    layer = filled(HybridLayer(spec, HIDDEN, 0, {}))
    layer.token_mixer = Twice()
    return layer


def passed(layer: HybridLayer, rows: torch.Tensor, shortcut: torch.Tensor | None = None) -> ResidualStream:
    stream = ResidualStream(rows.clone())
    stream.shortcut = shortcut
    layer(stream, None, None)
    return stream


def plain(layer: HybridLayer, x: torch.Tensor) -> torch.Tensor:
    x = x + 2 * layer.token_norm(x)
    return x + layer.channel_mixer(layer.channel_norm(x))


def with_post_norms(layer: HybridLayer, x: torch.Tensor) -> torch.Tensor:
    x = x + 0.5 * layer.token_post_norm(2 * layer.token_norm(x))
    return x + 0.25 * layer.channel_post_norm(layer.channel_mixer(layer.channel_norm(x)))


def going_on_from_norms(layer: HybridLayer, x: torch.Tensor) -> torch.Tensor:
    x = layer.token_norm(x)
    x = layer.channel_norm(x + 2 * x)
    return x + layer.channel_mixer(x)


def with_factor(layer: HybridLayer, x: torch.Tensor) -> torch.Tensor:
    return plain(layer, x) * layer.stream_scale


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, plain),
        (
            {
                "token_post_norm": NORM, "channel_post_norm": NORM, "residual_multiplier": 0.5,
                "channel_multiplier": 0.25,
            },
            with_post_norms,
        ),
        ({"replaces_stream": True}, going_on_from_norms),
        ({"has_stream_scale": True}, with_factor),
    ],
)  # fmt: skip
def test_a_layer_is_its_sum(fields: dict[str, Any], wanted: Callable[..., torch.Tensor]) -> None:
    layer, rows = make(**fields), torch.randn(5, HIDDEN)
    torch.testing.assert_close(passed(layer, rows).enter(None), wanted(layer, rows))


def test_a_shortcut_is_added_by_the_next_layer() -> None:
    layer, rows = make(shortcut=MLP), torch.randn(5, HIDDEN)
    begun = passed(layer, rows)
    between = rows + 2 * layer.token_norm(rows)
    torch.testing.assert_close(begun.shortcut, layer.shortcut(layer.channel_norm(between)))
    after = make()
    ended = passed(after, rows, begun.shortcut)
    torch.testing.assert_close(ended.enter(None), plain(after, rows) + begun.shortcut)
    assert ended.shortcut is None


def test_the_kind_of_a_spec_names_its_mixer() -> None:
    assert {type(make().channel_mixer), type(make(shortcut=MLP).shortcut)} == {MLPMixer}
