"""VisionTower: the vision transformer of CLIP and SigLIP.

Shape letters: n tiles, t rows of a tile, w width, p side of a patch, g patches along a tile's side.

Sources: https://arxiv.org/abs/2010.11929 (the transformer), https://arxiv.org/abs/2103.00020 (CLIP: a class row, a
norm before the layers, quick GELU), https://arxiv.org/abs/2303.15343 (SigLIP: neither).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS
from inference.modelling.layers.norm import Norm
from inference.modelling.vision.specs import TowerSpec


def quick_gelu(values: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(1.702 x), the GELU that CLIP was trained with."""
    return values * torch.sigmoid(1.702 * values)


TOWER_ACTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {**ACTIVATION_FUNCTIONS, "quick_gelu": quick_gelu}


class TowerLayer(Layer):
    """One layer: attention of all rows of a tile to each other, then an MLP, each behind a norm."""

    def __init__(self, spec: TowerSpec) -> None:
        super().__init__()
        width = spec.width
        self._num_heads = spec.num_heads
        self._act = TOWER_ACTS[spec.act]
        self.attention_norm = Norm(spec.norm, width)
        self.qkv_proj = Linear(width, 3 * width, bias=True)
        self.out_proj = Linear(width, width, bias=True)
        self.mlp_norm = Norm(spec.norm, width)
        self.fc1 = Linear(width, spec.intermediate_size, bias=True)
        self.fc2 = Linear(spec.intermediate_size, width, bias=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, t, w) to the same."""
        count, rows, width = hidden.shape
        joint = self.qkv_proj(self.attention_norm(hidden)).view(count, rows, 3, self._num_heads, -1)
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.out_proj(mixed.transpose(1, 2).reshape(count, rows, width))
        following: torch.Tensor = hidden + self.fc2(self._act(self.fc1(self.mlp_norm(hidden))))
        return following


class VisionTower(Layer):
    """Reads square tiles of pixels."""

    def __init__(self, spec: TowerSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self.patch_embedding = Linear(3 * spec.patch**2, width, bias=spec.has_patch_bias)
        rows = spec.side**2 + spec.has_class_row
        self.position_embedding = nn.Parameter(torch.empty(rows, width), requires_grad=False)
        self.class_embedding = None
        if spec.has_class_row:
            self.class_embedding = nn.Parameter(torch.empty(width), requires_grad=False)
        self.first_norm = Norm(spec.norm, width) if spec.has_first_norm else None
        self.layers = nn.ModuleList(TowerLayer(spec) for _ in range(spec.num_layers))
        self.last_norm = Norm(spec.norm, width) if spec.has_last_norm else None

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Normalised pixels (n, 3, tile, tile) to the patches' rows (n, g · g, w), line by line."""
        count, side, patch = tiles.shape[0], self.spec.side, self.spec.patch
        patches = tiles.reshape(count, 3, side, patch, side, patch).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        hidden: torch.Tensor = self.patch_embedding(patches.to(self.position_embedding.dtype))
        if self.class_embedding is not None:
            hidden = torch.cat((self.class_embedding.expand(count, 1, -1), hidden), 1)
        hidden = hidden + self.position_embedding
        if self.first_norm is not None:
            hidden = self.first_norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.last_norm is not None:
            hidden = self.last_norm(hidden)
        return hidden if self.class_embedding is None else hidden[:, 1:]
