"""ImageEncoder: the pixels of one picture to the rows that stand for it in the text model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.vision.projectors import build_projector
from inference.modelling.vision.specs import VisionSpec
from inference.modelling.vision.tower import VisionTower

TILES_AT_ONCE = 4
"""Tiles of one picture that the tower reads together, so that the memory of its rows is bounded."""


class ImageEncoder(nn.Module):
    """What a ``VisionSpec`` describes.

    Built empty (on the meta device) and filled by ``inference.modelling.weights.loader.load_vision``. Each picture is
    computed by itself, so that its rows don't depend on what else is in a step.

    Args:
        spec: Which.
    """

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.tower = VisionTower(spec.tower)
        self.projector = build_projector(spec.projector, spec.tower.width, spec.hidden_size, spec.layout.tile_tokens)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.tower.position_embedding.device

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The rows of one picture.

        Args:
            pixels: (height, width, 3) uint8, the canvas of its ``FittedImage``.

        Returns:
            (num_tokens, h), in the dtype of the weights.
        """
        tiles, across, down = self._tiles(self._normalised(pixels.to(self.device)))
        rows = torch.cat([self.tower(part) for part in torch.split(tiles, TILES_AT_ONCE)])
        projected: torch.Tensor = self.projector(rows, across, down)
        return projected

    def _normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """(height, width, 3) uint8 to (3, height, width) float32."""
        mean, std = (torch.tensor(values, device=pixels.device) for values in (self.spec.mean, self.spec.std))
        return ((pixels.float() / 255 - mean) / std).permute(2, 0, 1)

    def _tiles(self, canvas: torch.Tensor) -> tuple[torch.Tensor, int, int]:
        """The tiles (n, 3, tile, tile), and how many are across and down; with ``tiles`` the whole is the first."""
        tile = self.spec.layout.tile
        if self.spec.layout.kind == "square":
            return canvas.unsqueeze(0), 1, 1
        down, across = canvas.shape[1] // tile, canvas.shape[2] // tile
        whole = functional.interpolate(canvas.unsqueeze(0), size=(tile, tile), mode="bicubic")
        parts = canvas.view(3, down, tile, across, tile).permute(1, 3, 0, 2, 4).reshape(-1, 3, tile, tile)
        return torch.cat((whole, parts)), across, down
