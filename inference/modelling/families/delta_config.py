"""Read a delta rule's layer whose projections and convolutions are tensors of their own (OLMo Hybrid, Kimi)."""

from __future__ import annotations

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.state_space import conv_shape
from inference.modelling.specs.linear import GatedDeltaSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, concatenated, tensor


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
