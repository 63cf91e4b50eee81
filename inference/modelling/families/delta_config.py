"""Read a delta rule's layer whose projections are tensors of their own (OLMo Hybrid; Kimi, Ling, GLM-5.3)."""

from __future__ import annotations

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table
from inference.modelling.families.config_keys import Alias
from inference.modelling.families.config_values import check_size
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.state_space import conv_shape
from inference.modelling.specs.linear import GatedDeltaSpec, KimiDeltaSpec
from inference.modelling.specs.parts import NormSpec, Shape
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

PUBLISHED_SIZES = {
    "linear_num_heads": "num_heads",
    "linear_head_dim": "head_dim",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
"""Keys of ``channel_delta_mixer``'s sizes to what published files call them, within ``linear_attn_config``."""
LINEAR_SIZES: Table = {key: Alias((f"linear_attn_config.{member}",)) for key, member in PUBLISHED_SIZES.items()}


def separate_delta_mixer(view: CheckpointView, base: str, norm_eps: float) -> tuple[GatedDeltaSpec, dict[str, Source]]:
    """The linear layer under ``base``, its sizes from the shapes.

    Raises:
        TensorShapeMismatch: The tensors don't fit each other, or the sizes of config.json.
    """
    tensors = view.tensors
    heads, value_dim = vector_length(tensors, f"{base}A_log"), vector_length(tensors, f"{base}o_norm.weight")
    key_width = matrix_shape(tensors, f"{base}q_proj.weight")[0]
    kernel = conv_shape(view, f"{base}q_conv1d.weight")[1]
    key_heads = view.config.integer("linear_num_key_heads", default=heads, high=1 << 16)
    if key_width % key_heads or heads % key_heads:
        raise TensorShapeMismatch(
            f"{base}q_proj.weight has {key_width} rows and {base}A_log {heads} heads, which {key_heads} key heads "
            "(linear_num_key_heads) don't divide.",
            param=f"{base}q_proj.weight",
        )
    key_dim = key_width // key_heads
    check_size(view, heads, f"length of {base}A_log", "linear_num_value_heads")
    check_size(view, value_dim, f"length of {base}o_norm.weight", "linear_value_head_dim")
    check_size(view, key_dim, f"rows of {base}q_proj.weight by key heads", "linear_key_head_dim")
    check_size(view, kernel, f"shape of {base}q_conv1d.weight", "linear_conv_kernel_dim")
    spec = GatedDeltaSpec(key_heads, heads, key_dim, value_dim, kernel, NormSpec("rms", norm_eps))
    return spec, {
        "in_proj.weight": concatenated(*(f"{base}{name}_proj.weight" for name in "qkvg")),
        "ba_proj.weight": concatenated(*(f"{base}{name}_proj.weight" for name in "ba")),
        "conv1d.weight": concatenated(*(f"{base}{name}_conv1d.weight" for name in "qkv")),
        "dt_bias": tensor(f"{base}dt_bias"),
        "A_log": tensor(f"{base}A_log"),
        "norm.weight": tensor(f"{base}o_norm.weight"),
        "out_proj.weight": tensor(f"{base}o_proj.weight"),
    }


def channel_delta_mixer(
    view: CheckpointView, base: str, norm_eps: float, least_log_decay: float | None, *, output: str = "o_proj"
) -> tuple[KimiDeltaSpec, dict[str, Source]]:
    """The layer under ``base`` with a decay per channel, its sizes from the shapes.

    Gates are projected in two steps (Kimi) or in one (Ling). transformers joins GLM-5.3's convolutions, and gives the
    decays a module of their own.

    Args:
        least_log_decay: As in ``KimiDeltaSpec``.
        output: The file's name of the last projection.
    """
    tensors = view.tensors
    forget = f"{base}forget_gate." if f"{base}forget_gate.A_log" in tensors else base
    heads = _num_heads(f"{forget}A_log", tensors.shape(f"{forget}A_log"))
    width = vector_length(tensors, f"{base}o_norm.weight")
    joint = f"{base}conv1d.weight"
    convs = [joint] if joint in tensors else [f"{base}{name}_conv1d.weight" for name in "qkv"]
    kernel = conv_shape(view, convs[0])[1]
    is_low = f"{forget}f_a_proj.weight" in tensors
    shapes = f"shapes of the tensors of {base[:-1]}"
    for (key, member), found in zip(PUBLISHED_SIZES.items(), (heads, width, kernel), strict=True):
        check_size(view, found, shapes, key)
        check_size(view, found, shapes, f"linear_attn_config.{member}")
    check_size(view, kernel, shapes, "short_conv_kernel_size")
    places = {"f": forget, "g": base}
    ranks = [matrix_shape(tensors, f"{at}{name}_a_proj.weight")[0] if is_low else None for name, at in places.items()]
    low_rank = [f"{base}b_proj.weight", *(f"{at}{name}_a_proj.weight" for name, at in places.items() if is_low)]
    last = "_b_proj.weight" if is_low else "_proj.weight"
    spec = KimiDeltaSpec(heads, width, kernel, NormSpec("rms", norm_eps), ranks[0], ranks[1], least_log_decay)
    return spec, {
        "in_proj.weight": concatenated(*(f"{base}{name}_proj.weight" for name in "qkv")),
        "low_rank_proj.weight": concatenated(*low_rank),
        "decay_proj.weight": tensor(f"{forget}f{last}"),
        "gate_proj.weight": tensor(f"{base}g{last}"),
        "conv1d.weight": concatenated(*convs),
        "dt_bias": tensor(f"{forget}dt_bias"),
        "A_log": Source((Piece(f"{forget}A_log", reshape=(heads,)),)),
        "norm.weight": tensor(f"{base}o_norm.weight"),
        "out_proj.weight": tensor(f"{base}{output}.weight"),
    }


def _num_heads(name: str, shape: Shape) -> int:
    """The length of decays (H,), which published files also have as (1, 1, H, 1)."""
    if len(shape) not in (1, 4):
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; it must have one axis or four.", param=name)
    return shape[-2] if len(shape) == 4 else shape[0]
