"""StableLM: LayerNorms, a quarter of each head rotates; the 12B model has its mixers side by side.

Source: https://arxiv.org/abs/2402.17834, and transformers' ``stablelm``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import PRE_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, QKV_BIAS, ROPE, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import layer_norm
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec

ROTATED_SHARE = 0.25
CONFIG_KEYS: Mapping[str, Table] = {
    "stablelm": {
        **COMMON,
        **HEADS,
        **ROPE,
        **used("intermediate_size", "hidden_act", "layer_norm_eps", "qk_layernorm", "use_parallel_residual"),
        "use_qkv_bias": QKV_BIAS,
        "use_norm_bias": Harmless("the norms have biases, whatever it says"),
        "rotary_scaling_factor": Only((1.0,), "positions aren't stretched by it"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    is_parallel = view.config.boolean("use_parallel_residual", default=False)
    norms = {"token_norm": "input_layernorm"} if is_parallel else PRE_NORMS
    names = LayerNames(norms=norms, qk_norms=("q_layernorm", "k_layernorm"))
    decoder = AttentionDecoder.read(view, names)
    norm = layer_norm(view)
    return decoder.spec(
        "stablelm",
        norm=norm,
        ropes=decoder.rope(default_partial=ROTATED_SHARE),
        qk_norm="each_head" if view.config.boolean("qk_layernorm", default=False) else None,
        qk_norm_spec=NormSpec("layer", norm.eps, has_bias=False),
        is_parallel=is_parallel,
    )
