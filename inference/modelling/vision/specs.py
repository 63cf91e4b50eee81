"""VisionSpec: what the part of a model that sees is, without its weights. Standard library only.

    tower(pixels) → rows of patches → projector → rows of the text model's width, in the place of token embeddings

Shape letters: w width of the tower, h width of the text model, p side of a patch, g patches along a tile's side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.modelling.specs.parts import NormSpec, Shape, prefixed
from inference.modelling.specs.sources import Source
from inference.values.images import ImageInput, ImageLayout, ImagePrompt

TowerAct = Literal["quick_gelu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A vision transformer over one square tile (https://arxiv.org/abs/2010.11929).

    Attributes:
        width, intermediate_size, num_heads, num_layers: Of its layers, each norm, attention, norm, MLP.
        tile: Side of a tile in pixels.
        patch: Side of a patch in pixels.
        act: Of its MLPs; ``quick_gelu``: x · sigmoid(1.702 x).
        norm: Of all its norms.
        has_class_row: A learned row stands before those of the patches; the projector doesn't see it (CLIP).
        has_patch_bias: The patches' projection has a bias.
        has_first_norm, has_last_norm: There is a norm before the layers, and behind them.
    """

    width: int
    intermediate_size: int
    num_heads: int
    num_layers: int
    tile: int
    patch: int
    act: TowerAct
    norm: NormSpec
    has_class_row: bool = False
    has_patch_bias: bool = True
    has_first_norm: bool = False
    has_last_norm: bool = False

    @property
    def side(self) -> int:
        """g."""
        return self.tile // self.patch

    def parameter_shapes(self) -> dict[str, Shape]:
        """Shapes of all parameters, by name within the tower."""
        width, inner = self.width, self.intermediate_size
        shapes: dict[str, Shape] = {
            "patch_embedding.weight": (width, 3 * self.patch**2),
            "position_embedding": (self.side**2 + self.has_class_row, width),
        }
        if self.has_patch_bias:
            shapes["patch_embedding.bias"] = (width,)
        if self.has_class_row:
            shapes["class_embedding"] = (width,)
        for name, is_there in (("first_norm", self.has_first_norm), ("last_norm", self.has_last_norm)):
            if is_there:
                shapes |= prefixed(name, self.norm.parameter_shapes(width))
        layer: dict[str, Shape] = {
            **prefixed("attention_norm", self.norm.parameter_shapes(width)),
            **prefixed("mlp_norm", self.norm.parameter_shapes(width)),
        }
        for name, rows, columns in (
            ("qkv_proj", 3 * width, width),
            ("out_proj", width, width),
            ("fc1", inner, width),
            ("fc2", width, inner),
        ):
            layer |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
        for number in range(self.num_layers):
            shapes |= prefixed(f"layers.{number}", layer)
        return shapes


@dataclass(frozen=True, slots=True)
class TileProjectorSpec:
    """Phi-3-vision's projector: four neighbouring patches side by side, separators, and an MLP with GELU.

    Rows of tokens run across all tiles of a picture. A learned row (``line_end``) ends each of them, and another
    (``part_end``) stands between the picture in parts and the whole picture.
    """

    kind: Literal["tiles"] = "tiles"

    def parameter_shapes(self, width: int, hidden_size: int) -> dict[str, Shape]:
        """Shapes of all parameters, by name within the projector."""
        return {
            "line_end": (4 * width,),
            "part_end": (4 * width,),
            "fc1.weight": (hidden_size, 4 * width),
            "fc1.bias": (hidden_size,),
            "fc2.weight": (hidden_size, hidden_size),
            "fc2.bias": (hidden_size,),
        }


@dataclass(frozen=True, slots=True)
class PooledProjectorSpec:
    """Gemma 3's projector: the mean of square groups of patches, a norm, and a matrix.

    Attributes:
        norm: Over the tower's width.
    """

    norm: NormSpec
    kind: Literal["pooled"] = "pooled"

    def parameter_shapes(self, width: int, hidden_size: int) -> dict[str, Shape]:
        """Shapes of all parameters, by name within the projector."""
        return {**prefixed("norm", self.norm.parameter_shapes(width)), "projection.weight": (hidden_size, width)}


ProjectorSpec = TileProjectorSpec | PooledProjectorSpec


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The part of a model that sees.

    Attributes:
        hidden_size: h.
        layout: What pictures are brought to.
        prompt: How they are written into a prompt.
        mean, std: Of each colour, from 0 to 1; pixels are normalised by them.
        sees_whole_image: Each row of a picture attends to all rows of it, later ones too (Gemma 3).
        parameters: Our parameter names to their sources in the checkpoint.
    """

    hidden_size: int
    tower: TowerSpec
    projector: ProjectorSpec
    layout: ImageLayout
    prompt: ImagePrompt
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sees_whole_image: bool = False
    parameters: Mapping[str, Source] = field(default_factory=dict)

    @property
    def image_input(self) -> ImageInput:
        """What the text side needs of it."""
        return ImageInput(self.layout, self.prompt)

    def parameter_shapes(self) -> dict[str, Shape]:
        """The shape each parameter must have, by its full name."""
        return {
            **prefixed("tower", self.tower.parameter_shapes()),
            **prefixed("projector", self.projector.parameter_shapes(self.tower.width, self.hidden_size)),
        }

    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())


def image_input(vision: Mapping[str, Any] | None) -> ImageInput | None:
    """What the text side needs of a stored ``VisionSpec`` in its JSON form; None: there is none."""
    if vision is None:
        return None
    layout, prompt = (
        {name: value for name, value in vision[part].items() if name != "_"} for part in ("layout", "prompt")
    )
    return ImageInput(ImageLayout(**layout), ImagePrompt(**prompt))
