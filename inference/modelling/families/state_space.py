"""Read sizes of Mamba layers from shapes, check them against config.json, and name their sources.

The tensors of a Mamba layer have the same names in all families of HuggingFace; only the prefix and the config keys
differ. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView, Confidence
from inference.modelling.families.config_values import check_size
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.layers import Mamba1Spec, Mamba2Spec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, tensor

UNBOUNDED_POSITIONS = 1 << 20
"""Context of a purely recurrent model whose config.json names none: the recurrence itself has no limit."""

_MAX_INTEGER = 10**300
"""Larger integers may not fit into a float."""

LAYER_TYPE_NAMES = {
    "mamba": "mamba",
    "conv": "short_conv",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
"""Layer types in the naming of the hub's files and in that of transformers 5."""


@dataclass(frozen=True, slots=True)
class Mamba2Keys:
    """The config keys of a family for the sizes of its Mamba-2 layers, preferred spelling first.

    Attributes:
        default_groups: When config.json has neither the groups nor the state size.
    """

    num_heads: tuple[str, ...]
    head_dim: tuple[str, ...]
    state_size: tuple[str, ...]
    num_groups: tuple[str, ...]
    conv_kernel: tuple[str, ...]
    default_groups: int


HYBRID_KEYS = Mamba2Keys(
    ("mamba_n_heads",), ("mamba_d_head",), ("mamba_d_state",), ("mamba_n_groups",), ("mamba_d_conv",), 1
)
"""Bamba's spelling, which Granite took over."""

INNER_NORMS = {"dt_norm": "dt_layernorm", "b_norm": "b_layernorm", "c_norm": "c_layernorm"}
"""Our names of Mamba-1's inner norms to Jamba's."""


def time_step_limits(view: CheckpointView, *keys: str) -> tuple[float, float]:
    """The range that Δ is clamped to after softplus: a pair, its end possibly infinite in either spelling.

    Raises:
        CorruptCheckpoint: Not two numbers in ascending order.
    """
    value = view.config.get(*keys)
    if value is None:
        low, high, evidence = 0.0, math.inf, "not in config.json; the family's default"
    else:
        pair = value if isinstance(value, list | tuple) and len(value) == 2 else ()
        good = all(isinstance(item, int | float) and not isinstance(item, bool) for item in pair)
        good = good and not any(isinstance(item, int) and item > _MAX_INTEGER for item in pair)
        # A NaN fails the comparison as well.
        if not pair or not good or not 0.0 <= pair[0] <= pair[1] or not math.isfinite(pair[0]):
            raise CorruptCheckpoint(
                f"config.json: {keys[0]} is {str(value)[:60]!r}; it must be two numbers from 0 on, in ascending order.",
                param=keys[0],
            )
        low, high, evidence = float(pair[0]), float(pair[1]), "config.json"
    view.facts.add("mamba.time_step_limit", [low, high if math.isfinite(high) else "infinity"], evidence)
    return low, high


def mamba1_spec(
    view: CheckpointView,
    base: str,
    *,
    activation: str,
    inner_norm: NormSpec | None = None,
    state_size: tuple[str, ...],
    conv_kernel: tuple[str, ...],
    dt_rank: tuple[str, ...],
    intermediate_size: tuple[str, ...] = (),
) -> Mamba1Spec:
    """The Mamba-1 layer whose tensor names start with ``base``; all sizes from shapes.

    Args:
        base: With the dot, e.g. ``backbone.layers.0.mixer.``.
        activation: In our spelling.
        inner_norm: Norm of Δ, B and C, if the family has one.
        state_size: Config keys to compare with.
        intermediate_size: The same; where there is none, the width is the shapes'.

    Raises:
        TensorShapeMismatch: The shapes differ from config.json's sizes.
    """
    inner, size = matrix_shape(view.tensors, f"{base}A_log")
    kernel = conv_shape(view, f"{base}conv1d.weight")[1]
    rank = matrix_shape(view.tensors, f"{base}dt_proj.weight")[1]
    _record(view, "mamba.intermediate_size", inner, "rows of A_log", intermediate_size)
    _record(view, "mamba.state_size", size, "columns of A_log", state_size)
    _record(view, "mamba.conv_kernel", kernel, "shape of conv1d.weight", conv_kernel)
    _record(view, "mamba.dt_rank", rank, "columns of dt_proj.weight", dt_rank)
    return Mamba1Spec(
        intermediate_size=inner,
        state_size=size,
        conv_kernel=kernel,
        dt_rank=rank,
        proj_bias=f"{base}in_proj.bias" in view.tensors,
        conv_bias=f"{base}conv1d.bias" in view.tensors,
        activation=activation,
        inner_norm=inner_norm,
    )


def mamba1_sources(spec: Mamba1Spec, base: str, hidden_size: int) -> dict[str, Source]:
    """Sources of the layer's parameters: the same names, but for the inner norms."""
    sources = {}
    for name in spec.parameter_shapes(hidden_size):
        owner, _, leaf = name.partition(".")
        sources[name] = tensor(f"{base}{INNER_NORMS[owner]}.{leaf}" if owner in INNER_NORMS else base + name)
    return sources


def mamba2_spec(
    view: CheckpointView,
    base: str,
    keys: Mamba2Keys,
    *,
    activation: str,
    norm_eps: float,
    limits: tuple[float, float],
) -> Mamba2Spec:
    """The Mamba-2 layer whose tensor names start with ``base``.

    Shapes give everything but the split of B and C into groups, of which only groups × state size shows.
    The gated norm runs over one group's share of the inner width.

    Raises:
        TensorShapeMismatch: The tensors don't fit each other, or the sizes of config.json.
    """
    tensors = view.tensors
    heads = vector_length(tensors, f"{base}A_log")
    inner = matrix_shape(tensors, f"{base}out_proj.weight")[1]
    conv_width, kernel = conv_shape(view, f"{base}conv1d.weight")
    if inner % heads:
        raise TensorShapeMismatch(
            f"{base}out_proj.weight has {inner} columns, which {heads} heads (length of A_log) don't divide.",
            param=f"{base}out_proj.weight",
        )
    _record(view, "mamba.num_heads", heads, "length of A_log", keys.num_heads)
    _record(view, "mamba.head_dim", inner // heads, "columns of out_proj by heads", keys.head_dim)
    _record(view, "mamba.conv_kernel", kernel, "shape of conv1d.weight", keys.conv_kernel)
    groups, size = _groups(view, f"{base}conv1d.weight", conv_width - inner, keys)
    if heads % groups:
        raise TensorShapeMismatch(
            f"config.json: {heads} heads can't share {groups} groups ({keys.num_groups[0]}).", param=keys.num_groups[0]
        )
    return Mamba2Spec(
        intermediate_size=inner,
        num_heads=heads,
        head_dim=inner // heads,
        state_size=size,
        num_groups=groups,
        conv_kernel=kernel,
        norm_group_size=inner // groups,
        gated_norm=NormSpec("rms", norm_eps) if f"{base}norm.weight" in tensors else None,
        dt_min=limits[0],
        dt_max=limits[1],
        proj_bias=f"{base}in_proj.bias" in tensors,
        conv_bias=f"{base}conv1d.bias" in tensors,
        activation=activation,
    )


def mamba2_sources(spec: Mamba2Spec, base: str, hidden_size: int) -> dict[str, Source]:
    """Sources of the layer's parameters: the names are the same."""
    return {name: tensor(base + name) for name in spec.parameter_shapes(hidden_size)}


def check_layer_kinds(key: str, stated: Sequence[str] | None, layers: Sequence[LayerSpec]) -> None:
    """Compare the kinds that config.json gives the layers with those of their tensors.

    Args:
        key: The key of config.json.
        stated: Its kinds, values of ``LAYER_TYPE_NAMES``; None: it has none.
        layers: What the tensors gave.

    Raises:
        TensorShapeMismatch: They differ.
    """
    if stated is None:
        return
    if len(stated) != len(layers):
        raise TensorShapeMismatch(
            f"config.json describes {len(stated)} layers ({key}), but the tensors have {len(layers)}; correct "
            "config.json.",
            param=key,
        )
    for number, (kind, layer) in enumerate(zip(stated, layers, strict=True)):
        part = layer.token_mixer or layer.channel_mixer
        assert part is not None
        found = part.kind.rstrip("12")
        if found != kind:
            raise TensorShapeMismatch(
                f"config.json calls layer {number} {kind} ({key}), but its tensors are {found}'s; correct config.json.",
                param=key,
            )


def stated_layer_types(view: CheckpointView, *keys: str, linear: str = "mamba") -> tuple[str, ...] | None:
    """The list of layer types of config.json in our words (``LAYER_TYPE_NAMES``); None when the keys are absent.

    Args:
        linear: What the family calls ``linear_attention``.

    Raises:
        UnsupportedArchitecture: A type that isn't known.
    """
    names = view.config.strings(*keys)
    for name in names:
        if name not in LAYER_TYPE_NAMES:
            raise UnsupportedArchitecture(
                f"config.json: layer type {name[:60]!r} is not supported; supported are {', '.join(LAYER_TYPE_NAMES)}.",
                param=keys[0],
            )
    return tuple(linear if name == "linear_attention" else LAYER_TYPE_NAMES[name] for name in names) or None


def check_hybrid_layers(view: CheckpointView, num_layers: int, hybrid: Sequence[int]) -> None:
    """Compare the layers that run a shared block (Zamba, Zamba 2) with those that config.json states.

    Raises:
        UnsupportedArchitecture: A layer type that isn't known.
        TensorShapeMismatch: config.json states others.
    """
    kinds = view.config.strings("layers_block_type")
    for kind in kinds:
        if kind not in ("mamba", "linear_attention", "hybrid"):
            raise UnsupportedArchitecture(
                f"config.json: layer type {kind[:60]!r} is not supported; supported are mamba, linear_attention, "
                "hybrid.",
                param="layers_block_type",
            )
    stated = {
        "layers_block_type": [number for number, kind in enumerate(kinds) if kind == "hybrid"] if kinds else None,
        "hybrid_layer_ids": list(view.config.integers("hybrid_layer_ids")) or None,
    }
    if kinds and len(kinds) != num_layers:
        stated["layers_block_type"] = [-1]
    for key, found in stated.items():
        if found is not None and found != list(hybrid):
            raise TensorShapeMismatch(
                f"config.json: the layers with a shared block are others ({key}) than those of the tensors "
                f"({', '.join(map(str, hybrid))}); correct config.json.",
                param=key,
            )


def unknown_layer(layer: str, expected: str) -> UnsupportedArchitecture:
    """The error for a layer with the tensors of no known mixer.

    Args:
        layer: Start of its names, with the dot.
        expected: The names looked for.
    """
    return UnsupportedArchitecture(
        f"layer {layer[:-1]} has none of the tensors {expected}, so its kind is unknown.", param=layer[:-1]
    )


def _groups(view: CheckpointView, name: str, bc_width: int, keys: Mamba2Keys) -> tuple[int, int]:
    """(groups, state size) of the rows of B and C together."""
    config = view.config
    groups = config.optional_integer(*keys.num_groups, high=1 << 16)
    size = config.optional_integer(*keys.state_size, high=1 << 16)
    evidence, confidence = "config.json and the rows of conv1d.weight", Confidence.CERTAIN
    if groups is None:
        if size is not None and bc_width % (2 * size) == 0:
            groups = bc_width // (2 * size)
            evidence = f"rows of conv1d.weight by {keys.state_size[0]} of config.json"
        else:
            groups = keys.default_groups
            evidence, confidence = "not in config.json; the family's default", Confidence.LOW
    if bc_width <= 0 or bc_width % (2 * groups) or (size is not None and 2 * groups * size != bc_width):
        raise TensorShapeMismatch(
            f"{name} leaves {bc_width} rows for B and C, which {groups} groups of "
            f"{size or 'any'} state values don't give; correct {keys.num_groups[0]} or {keys.state_size[0]}.",
            param=name,
        )
    view.facts.add("mamba.num_groups", groups, evidence, confidence)
    view.facts.add("mamba.state_size", bc_width // (2 * groups), evidence, confidence)
    return groups, bc_width // (2 * groups)


def conv_shape(view: CheckpointView, name: str) -> tuple[int, int]:
    """(channels, kernel) of the depthwise convolution whose weight is ``name``."""
    shape = view.tensors.shape(name)
    if len(shape) != 3 or shape[1] != 1 or not 1 <= shape[2] <= 64:
        raise TensorShapeMismatch(
            f"{name} has shape {list(shape)}; [channels, 1, kernel] with a kernel of at most 64 is needed.", param=name
        )
    return shape[0], shape[2]


def _record(view: CheckpointView, fact: str, found: int, evidence: str, keys: tuple[str, ...] = ()) -> None:
    """Record a size that the shapes gave; config.json may state it (``auto`` doesn't), but not another."""
    if keys and view.config.get(*keys) != "auto":
        check_size(view, found, evidence, *keys)
    view.facts.add(fact, found, evidence)
