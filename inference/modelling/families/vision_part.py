"""Read the part of a checkpoint that sees: its tower by the tensors' shapes, its projector by the family's names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import CheckpointError, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import IgnoredTensors, source_shape
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.headers import STORED_DTYPES, sample_of
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor
from inference.modelling.vision.specs import TowerAct, TowerSpec, VisionSpec

PREPROCESSOR = "_preprocessor_config"
"""Under this key the inspection puts preprocessor_config.json beside the keys of config.json."""

LAYER_NAMES = {
    "attention_norm": "layer_norm1",
    "mlp_norm": "layer_norm2",
    "out_proj": "self_attn.out_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
"""Our names of a tower layer's parts to those of CLIP's and SigLIP's files."""


@dataclass(frozen=True, slots=True)
class TowerOptions:
    """What a tower's tensors don't show.

    Attributes:
        prefix: What stands before ``embeddings.`` and ``encoder.layers.``.
        num_heads: Of its attention; None: heads are 64 wide, as CLIP's are.
        num_left_out: Layers at its end that aren't computed.
        first_norm, last_norm: The norms around its layers, under the prefix; empty: there is none.
    """

    prefix: str
    act: TowerAct
    eps: float
    num_heads: int | None = None
    num_left_out: int = 0
    first_norm: str = ""
    last_norm: str = ""


def preprocessor_config(view: CheckpointView) -> CheckpointConfig:
    """preprocessor_config.json; empty if it isn't there."""
    value = view.config.get(PREPROCESSOR)
    return CheckpointConfig(dict(value) if isinstance(value, Mapping) else {})


def colours(config: CheckpointConfig, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """``image_mean`` or ``image_std``, a number for each colour.

    Raises:
        UnsupportedArchitecture: There aren't three.
    """
    values = config.numbers(name) or default
    if len(values) != 3 or (name == "image_std" and min(values) <= 0):
        raise UnsupportedArchitecture(f"{name} is {values}; there must be three numbers, one a colour.", param=name)
    return values


def read_tower(view: CheckpointView, options: TowerOptions) -> tuple[TowerSpec, dict[str, Source]]:
    """The tower, and the sources of its parameters by name within it.

    Raises:
        CheckpointError: Tensors are missing, or don't fit each other.
    """
    prefix, tensors = options.prefix, view.tensors
    width, _, patch, _ = _shape(view, f"{prefix}embeddings.patch_embedding.weight", 4)
    rows, _ = _shape(view, f"{prefix}embeddings.position_embedding.weight", 2)
    has_class_row = f"{prefix}embeddings.class_embedding" in tensors
    side = math.isqrt(rows - has_class_row)
    inner, _ = _shape(view, f"{prefix}encoder.layers.0.mlp.fc1.weight", 2)
    numbers = re.compile(re.escape(f"{prefix}encoder.layers.") + r"(\d+)\.")
    num_layers = 1 + max(int(found[1]) for found in map(numbers.match, tensors) if found)
    num_heads = options.num_heads or max(1, width // 64)
    if width % num_heads or num_layers <= options.num_left_out or side < 1:
        raise UnsupportedArchitecture(
            f"the vision tower has {num_layers} layers of width {width} and {num_heads} heads, which don't divide it.",
            param=f"{prefix}encoder.layers",
        )
    has_bias = f"{prefix}embeddings.patch_embedding.bias" in tensors
    spec = TowerSpec(
        width=width,
        intermediate_size=inner,
        num_heads=num_heads,
        num_layers=num_layers - options.num_left_out,
        tile=side * patch,
        patch=patch,
        act=options.act,
        norm=NormSpec("layer", options.eps),
        has_class_row=has_class_row,
        has_patch_bias=has_bias,
        has_first_norm=bool(options.first_norm),
        has_last_norm=bool(options.last_norm),
    )
    return spec, _tower_sources(spec, options)


def _tower_sources(spec: TowerSpec, options: TowerOptions) -> dict[str, Source]:
    prefix = options.prefix
    weight = Piece(f"{prefix}embeddings.patch_embedding.weight", reshape=(spec.width, 3 * spec.patch**2))
    sources = {
        "patch_embedding.weight": Source((weight,)),
        "position_embedding": tensor(f"{prefix}embeddings.position_embedding.weight"),
    }
    if spec.has_patch_bias:
        sources["patch_embedding.bias"] = tensor(f"{prefix}embeddings.patch_embedding.bias")
    if spec.has_class_row:
        sources["class_embedding"] = tensor(f"{prefix}embeddings.class_embedding")
    for name, stored in (("first_norm", options.first_norm), ("last_norm", options.last_norm)):
        if stored:
            sources |= _pair(name, f"{prefix}{stored}")
    for number in range(spec.num_layers):
        base = f"{prefix}encoder.layers.{number}."
        layer: dict[str, Source] = {}
        for name, stored in LAYER_NAMES.items():
            layer |= _pair(name, base + stored)
        for leaf in ("weight", "bias"):
            layer[f"qkv_proj.{leaf}"] = concatenated(*(f"{base}self_attn.{part}_proj.{leaf}" for part in "qkv"))
        sources |= prefixed(f"layers.{number}", layer)
    return sources


def _pair(name: str, stored: str) -> dict[str, Source]:
    return {f"{name}.{leaf}": tensor(f"{stored}.{leaf}") for leaf in ("weight", "bias")}


def vision_part(
    view: CheckpointView,
    owned: re.Pattern[str],
    read: Callable[[CheckpointView], VisionSpec],
    *,
    ignored: tuple[IgnoredTensors, ...] = (),
) -> VisionSpec | None:
    """The part that sees; None where the files have none, or none that is read, since the text is served without.

    Args:
        owned: Names of its tensors.
        read: Reads it; its errors are reported as a warning.
        ignored: Its tensors that the arithmetic doesn't need.
    """
    names = [name for name in view.tensors if owned.match(name)]
    if not names:
        return None
    try:
        spec = _checked(view, read(view), names, ignored)
    except CheckpointError as error:
        view.facts.add("vision", "left out", f"{len(names)} tensors beside the text model, which aren't read")
        view.facts.warn(f"images aren't read: {error.message}")
        return None
    layout = spec.layout
    view.facts.add(
        "vision",
        "images",
        f"{len(names)} tensors: {spec.tower.num_layers} layers of width {spec.tower.width}, tiles of {layout.tile} "
        f"pixels, {layout.fit(layout.tile, layout.tile).num_tokens} tokens for a square image",
    )
    return spec


def _checked(
    view: CheckpointView, spec: VisionSpec, names: list[str], ignored: tuple[IgnoredTensors, ...]
) -> VisionSpec:
    """The spec, if the headers give each parameter its shape, and each tensor has a place.

    Raises:
        CheckpointError: One doesn't.
    """
    used: set[str] = set()
    for name, expected in spec.parameter_shapes().items():
        source = spec.parameters[name]
        found, stored = source_shape(source, view.tensors), list(source.tensor_names())
        if found != expected:
            raise TensorShapeMismatch(
                f"{stored[0]} has shape {list(found)}, not {list(expected)} ({name}).", param=stored[0]
            )
        odd = next((item for item in stored if view.tensors[item].dtype not in STORED_DTYPES), None)
        if odd is not None:
            raise UnsupportedArchitecture(f"{odd} is stored as {view.tensors[odd].dtype}.", param=odd)
        used.update(stored)
    left = [name for name in names if name not in used and not any(group.names.search(name) for group in ignored)]
    if left:
        raise UnsupportedArchitecture(f"{len(left)} tensors have no place in it: {sample_of(left)}.", param=min(left))
    return spec


def _shape(view: CheckpointView, name: str, length: int) -> tuple[int, ...]:
    shape = view.tensors.shape(name)
    if len(shape) != length:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; {length} axes are needed.", param=name)
    return shape


def with_parameters(spec: VisionSpec, tower: Mapping[str, Source], projector: Mapping[str, Source]) -> VisionSpec:
    """The spec with the sources of its two parts."""
    parameters: dict[str, Any] = {**prefixed("tower", tower), **prefixed("projector", projector)}
    return replace(spec, parameters=parameters)
