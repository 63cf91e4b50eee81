"""JetMoe: experts in each layer, also of attention, whose heads share keys and values.

Source: https://arxiv.org/abs/2404.07413, and transformers' ``jetmoe``, which norms with 1e-6 whatever config.json says.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, EXPERTS, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, check_size, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.headers import matrix_shape, stack_shape
from inference.modelling.families.moe_config import check_routing
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.rope_config import read_rope
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.attention_parts import HeadExpertsSpec
from inference.modelling.specs.layers import AttentionSpec, MoESpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "jetmoe": {
        **COMMON,
        **ROPE,
        **{key: rule for key, rule in EXPERTS.items() if key != "num_experts"},
        **used("num_key_value_heads", "kv_channels", "intermediate_size", "activation_function", "rms_norm_eps"),
        **harmless("kv_channels and num_key_value_heads say it", "head_dim", "num_attention_heads"),
        **harmless("training only", "aux_loss_coef"),
        "glu": Only((True,), "the experts have gates"),
    }
}
LAYER_NORM = NormSpec("rms", 1e-6)


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, tied_by_default=True)
    base = layout.layer(0)
    count, rows, _ = stack_shape(view.tensors, f"{base}self_attention.experts.input_linear.weight")
    kv_heads = view.config.integer("num_key_value_heads", default=16)
    width = _head_dim(view, rows, kv_heads)
    top_k = integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2)
    attention = AttentionSpec(
        num_heads=top_k * kv_heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        scale=width**-0.5,
        rope=read_rope(view, width, max_position_embeddings=layout.max_position_embeddings),
        head_experts=HeadExpertsSpec(count, top_k),
    )
    moe = _experts(view, f"{base}mlp.", top_k)

    def read_layer(number: int) -> HeadLayer:
        layer = layout.layer(number)
        token = {f"head_experts.{name}": source for name, source in _stacks(f"{layer}self_attention.experts.").items()}
        token["qkv_proj.weight"] = tensor(f"{layer}self_attention.kv_proj.weight")
        return llama_layer(attention, moe, LAYER_NORM), llama_parts(layer, token, _stacks(f"{layer}mlp.", gated=True))

    layers, sources = read_layers(layout.num_layers, read_layer)
    return decoder_spec(view, layout, "jetmoe", layers, sources, rms_norm(view), ignored=(ROTARY_BUFFERS,))


def _head_dim(view: CheckpointView, rows: int, kv_heads: int) -> int:
    """Width of a head, of the ``rows`` of an expert's queries.

    Raises:
        TensorShapeMismatch: They can't be split into the heads.
    """
    if rows % kv_heads:
        raise TensorShapeMismatch(
            f"an expert's queries have {rows} rows, which {kv_heads} key/value heads don't divide.",
            param="num_key_value_heads",
        )
    check_size(view, rows // kv_heads, "rows of an expert's queries for each head", "kv_channels")
    return rows // kv_heads


def _experts(view: CheckpointView, base: str, top_k: int) -> MoESpec:
    count, _, width = stack_shape(view.tensors, f"{base}output_linear.weight")
    choices = matrix_shape(view.tensors, f"{base}router.layer.weight")[0]
    check_size(view, choices, f"rows of {base}router.layer.weight", "num_local_experts")
    check_size(view, width, f"width of an expert under {base[:-1]}", "intermediate_size")
    view.facts.add("moe.num_experts", count, "expert tensors")
    act = activation(view, "activation_function")
    return check_routing(MoESpec(count, top_k, width, activation=act, output_bias=True))


def _stacks(base: str, *, gated: bool = False) -> dict[str, Source]:
    """Router, stacked matrices and bias of the experts under ``base``."""
    return {
        "router.weight": tensor(f"{base}router.layer.weight"),
        f"experts.{'gate_up_proj' if gated else 'up_proj'}": tensor(f"{base}input_linear.weight"),
        "experts.down_proj": tensor(f"{base}output_linear.weight"),
        "bias": tensor(f"{base}bias"),
    }
