"""Projectors put rows where the picture has them."""

import torch

from inference.modelling.specs.parts import NormSpec
from inference.modelling.vision.projectors import PooledProjector, TileProjector
from inference.modelling.vision.specs import PooledProjectorSpec


def identity(layer: torch.nn.Module) -> None:
    layer.weight.data = torch.eye(*layer.weight.shape)
    if layer.bias is not None:
        layer.bias.data.zero_()


def test_tokens_of_tiles_run_across_the_whole_picture():
    """Rows of width 1 that are numbers: line by line, over both tiles, four patches side by side."""
    projector = TileProjector(1, 4)
    identity(projector.fc1)
    identity(projector.fc2)
    projector.line_end.data.fill_(1000.0)
    projector.part_end.data.fill_(2000.0)
    tile = torch.arange(16.0).view(1, 16, 1)
    rows = torch.cat((tile + 900, tile + 100, tile + 200))
    with torch.inference_mode():
        found = projector(rows, 2, 1)
    assert found[:, 0].round().tolist() == [100, 102, 200, 202, 1000, 108, 110, 208, 210, 1000, 2000,
                                            900, 902, 1000, 908, 910, 1000]  # fmt: skip
    assert found[0].round().tolist() == [100, 101, 104, 105]


def test_pools_are_means_of_squares():
    projector = PooledProjector(PooledProjectorSpec(NormSpec("rms", eps=0.0, weightless=True)), 1, 1, 2)
    projector.projection.weight.data.fill_(3.0)
    rows = torch.tensor([1.0, 1, -2, -2, 1, 1, -2, -2, 5, 5, -7, -7, 5, 5, -7, -7]).view(1, 16, 1)
    with torch.inference_mode():
        assert projector(rows, 1, 1)[:, 0].tolist() == [3.0, -3.0, 3.0, -3.0]
