"""Projectors: a tower's rows to embeddings of the text model.

Shape letters: n tiles, g patches along a tile's side, w width of the tower, h width of the text model.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.vision.specs import PooledProjectorSpec, ProjectorSpec, TileProjectorSpec


class TileProjector(Layer):
    """See ``TileProjectorSpec``.

    Source: https://arxiv.org/abs/2404.14219, section 6, and the published files of Phi-3-vision.
    """

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.line_end = nn.Parameter(torch.empty(4 * width), requires_grad=False)
        self.part_end = nn.Parameter(torch.empty(4 * width), requires_grad=False)
        self.fc1 = Linear(4 * width, hidden_size, bias=True)
        self.fc2 = Linear(hidden_size, hidden_size, bias=True)

    def forward(self, rows: torch.Tensor, across: int, down: int) -> torch.Tensor:
        """Project a picture.

        Args:
            rows: (1 + down · across, g · g, w): the whole picture, then its tiles line by line.
            across, down: Tiles along its sides.

        Returns:
            (tokens, h): the lines of the picture in parts, a separator, the lines of the whole.
        """
        parts, whole = self._lines(rows[1:], across, down), self._lines(rows[:1], 1, 1)
        joined = torch.cat((parts, self.part_end[None], whole))
        projected: torch.Tensor = self.fc2(functional.gelu(self.fc1(joined)))
        return projected

    def _lines(self, rows: torch.Tensor, across: int, down: int) -> torch.Tensor:
        """(down · across, g · g, w) to (lines · (columns + 1), 4 w), each line with its end."""
        side, width = int(rows.shape[1] ** 0.5), rows.shape[2]
        half = side // 2
        grid = rows.view(down, across, half, 2, half, 2, width)
        # down, line within the tile, across, column within the tile; the four patches of a token side by side.
        grid = grid.permute(0, 2, 1, 4, 3, 5, 6).reshape(down * half, across * half, 4 * width)
        ends = self.line_end.expand(grid.shape[0], 1, -1)
        return torch.cat((grid, ends), 1).flatten(0, 1)


class PooledProjector(Layer):
    """See ``PooledProjectorSpec``.

    Source: https://arxiv.org/abs/2503.19786, section 2.1.
    """

    def __init__(self, spec: PooledProjectorSpec, width: int, hidden_size: int, side: int) -> None:
        super().__init__()
        self._side = side
        self.norm = Norm(spec.norm, width)
        self.projection = Linear(width, hidden_size)

    def forward(self, rows: torch.Tensor, across: int, down: int) -> torch.Tensor:
        """(1, g · g, w) to (side · side, h)."""
        assert (across, down, rows.shape[0]) == (1, 1, 1)
        grid = int(rows.shape[1] ** 0.5)
        square = rows.transpose(1, 2).reshape(1, -1, grid, grid)
        pooled = functional.avg_pool2d(square, grid // self._side).flatten(2).transpose(1, 2)
        projected: torch.Tensor = self.projection(self.norm(pooled[0]))
        return projected


def build_projector(spec: ProjectorSpec, width: int, hidden_size: int, side: int) -> TileProjector | PooledProjector:
    """The projector of a spec; ``side``: tokens along a tile's side."""
    if isinstance(spec, TileProjectorSpec):
        return TileProjector(width, hidden_size)
    return PooledProjector(spec, width, hidden_size, side)
