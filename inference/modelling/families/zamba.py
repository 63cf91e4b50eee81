"""Zamba: Mamba-1 layers with heads, some of which first run a transformer block that they share.

Source: https://arxiv.org/abs/2405.16712, the published Zyphra/Zamba-7B-v1 files and transformers' ``zamba``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import DECODER, HYBRID_MAMBA, NO_ROPE, Table, harmless, used
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.state_space import check_hybrid_layers, conv_shape
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import Mamba1Spec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.shared_blocks import SharedBlockSpec
from inference.modelling.specs.sources import Piece, Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "zamba": {
        **{key: rule for key, rule in DECODER.items() if key != "head_dim"},
        **NO_ROPE,
        **HYBRID_MAMBA,
        **used(
            "attention_head_dim", "attention_hidden_size", "n_mamba_heads", "hidden_mamba_act", "mamba_dt_rank",
            "layers_block_type", "attn_layer_period", "attn_layer_offset",
        ),
        **harmless("start values of a training", "time_step_min", "time_step_max", "time_step_floor"),
    },
}  # fmt: skip

FIRST_LAYERS = 3
"""So many layers, the last of them with the block, stand before those that period and offset count."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, tied_by_default=True)
    norm = rms_norm(view, default=1e-5)
    hybrid = [n for n in range(layout.num_layers) if f"{layout.layer(n)}linear.weight" in view.tensors]
    check_hybrid_layers(view, layout.num_layers, hybrid)
    _check_period(view, layout.num_layers, hybrid)
    inner_activation = activation(view, "hidden_mamba_act")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        name, layer = f"layers.{number}", layout.layer(number)
        base = f"{layer}mamba_decoder." if number in hybrid else layer
        mixer = _mamba(view, f"{base}mamba.", inner_activation)
        sources |= prefixed(f"{name}.token_mixer", _mamba_sources(mixer, f"{base}mamba.", layout.hidden_size))
        sources[f"{name}.token_norm.weight"] = tensor(f"{base}input_layernorm.weight")
        prologue = None
        if number in hybrid:
            # Where head and embedding aren't tied, transformers 5 doesn't tie the blocks either.
            has_block = number == hybrid[0] or f"{layer}shared_transf.input_layernorm.weight" in view.tensors
            owner = number if has_block else hybrid[0]
            prologue = _block(view, layout, owner, norm)
            sources[f"{name}.prologue.out_proj.weight"] = tensor(f"{layer}linear.weight")
            if has_block:
                sources |= prefixed(f"{name}.prologue.block", _block_sources(view, prologue, f"{layer}shared_transf."))
        layers.append(LayerSpec(token_mixer=mixer, token_norm=norm, prologue=prologue))
    return decoder_spec(view, layout, "zamba", layers, sources, norm, final_norm_name="final_layernorm")


def _check_period(view: CheckpointView, num_layers: int, hybrid: Sequence[int]) -> None:
    """Compare the layers that run the block with those of period and offset, if nothing else lists them.

    Raises:
        TensorShapeMismatch: They are others.
    """
    config = view.config
    if "layers_block_type" in config or "attn_layer_period" not in config or "attn_layer_offset" not in config:
        return
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", low=0)
    stated = [FIRST_LAYERS - 1] if num_layers >= FIRST_LAYERS else []
    stated += [n for n in range(FIRST_LAYERS, num_layers) if (n - FIRST_LAYERS) % period == offset]
    if stated != list(hybrid):
        raise TensorShapeMismatch(
            f"config.json: attn_layer_period {period} and attn_layer_offset {offset} put the shared block into the "
            f"layers {stated}, but the tensors have it in {list(hybrid)}; correct config.json.",
            param="attn_layer_period",
        )


def _mamba(view: CheckpointView, base: str, inner_activation: str) -> Mamba1Spec:
    """The Mamba layer under ``base``; all sizes from shapes.

    Raises:
        TensorShapeMismatch: A tensor has another number of axes, or config.json has other sizes.
    """
    heads, width, size = _shape_by_head(view, f"{base}A_log")
    rank = _shape_by_head(view, f"{base}dt_proj_weight")[2]
    kernel = conv_shape(view, f"{base}conv1d.weight")[1]
    check_size(view, heads, f"shape of {base}A_log", "n_mamba_heads")
    check_size(view, size, f"shape of {base}A_log", "mamba_d_state")
    check_size(view, kernel, f"shape of {base}conv1d.weight", "mamba_d_conv")
    if view.config.get("mamba_dt_rank") != "auto":
        check_size(view, rank, f"shape of {base}dt_proj_weight", "mamba_dt_rank")
    return Mamba1Spec(
        intermediate_size=heads * width,
        state_size=size,
        conv_kernel=kernel,
        dt_rank=rank,
        proj_bias=f"{base}in_proj.bias" in view.tensors,
        conv_bias=f"{base}conv1d.bias" in view.tensors,
        activation=inner_activation,
        num_heads=heads,
    )


def _shape_by_head(view: CheckpointView, name: str) -> tuple[int, int, int]:
    """(heads, channels of a head, columns)."""
    shape = view.tensors.shape(name)
    if len(shape) != 3 or 0 in shape:
        raise TensorShapeMismatch(
            f"{name} has shape {list(shape)}; [heads, channels of a head, columns] is needed.", param=name
        )
    return shape[0], shape[1], shape[2]


def _mamba_sources(spec: Mamba1Spec, base: str, hidden_size: int) -> dict[str, Source]:
    """Sources of the layer's parameters: rows of ``in_proj`` take turns, and heads have an axis of their own."""
    renamed = {
        "x_proj.weight": "x_proj_weight", "dt_proj.weight": "dt_proj_weight", "dt_proj.bias": "dt_proj_bias",
    }  # fmt: skip
    sources: dict[str, Source] = {}
    for name, shape in spec.parameter_shapes(hidden_size).items():
        stored = base + renamed.get(name, name)
        if name.startswith("in_proj."):
            sources[name] = Source((Piece(stored, stride=(0, 2)), Piece(stored, stride=(1, 2))))
        elif name in renamed or name in ("A_log", "D"):
            sources[name] = Source((Piece(stored, reshape=shape),))
        else:
            sources[name] = tensor(stored)
    return sources


def _block(view: CheckpointView, layout: DecoderLayout, owner: int, norm: NormSpec) -> SharedBlockSpec:
    """The block whose tensors are stored under the layer ``owner``, the first that runs it."""
    base = f"{layout.layer(owner)}shared_transf."
    check_size(view, 2 * layout.hidden_size, f"twice the columns of {layout.embedding}", "attention_hidden_size")
    count = view.config.optional_integer("num_attention_heads", high=1 << 16)
    heads = read_heads(view, base, default_head_dim=None if count is None else 2 * layout.hidden_size // count)
    check_size(view, heads.head_dim, f"rows of {base}self_attn.q_proj.weight", "attention_head_dim")
    attention = attention_spec(view, base, heads, None, scale=(heads.head_dim / 2) ** -0.5)
    mlp = mlp_spec(view, base, activation(view, default="gelu"), mlp="feed_forward.")
    return SharedBlockSpec(owner, attention, mlp, norm, attention_rank=None, mlp_rank=None)


def _block_sources(view: CheckpointView, spec: SharedBlockSpec, base: str) -> dict[str, Source]:
    return {
        "input_norm.weight": tensor(f"{base}input_layernorm.weight"),
        "mlp_norm.weight": tensor(f"{base}pre_ff_layernorm.weight"),
        **prefixed("attention", attention_sources(view, spec.attention, base)),
        **prefixed("mlp", mlp_sources(view, spec.mlp, base, mlp="feed_forward.")),
    }
