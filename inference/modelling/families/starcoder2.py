"""StarCoder 2: LayerNorms, biases, an MLP without a gate, a window over all layers.

Source: https://arxiv.org/abs/2402.19173, and transformers' ``starcoder2``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(mlp_matrices=MLPNames(up="c_fc", down="c_proj"))
CONFIG_KEYS: Mapping[str, Table] = {
    "starcoder2": {
        **COMMON,
        **HEADS,
        **ROPE,
        **used("intermediate_size", "hidden_act", "norm_epsilon", "sliding_window"),
        **harmless("training only", "residual_dropout", "embedding_dropout"),
        **harmless("the shapes say it", "mlp_type"),
        **harmless(
            "early names, which transformers doesn't read",
            "activation_function", "layer_norm_epsilon", "attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32",
        ),
        "scale_attn_weights": Only((True,), "scores are divided by the root of the head's width"),
        "norm_type": Only(("layer_norm",), "the norms are LayerNorms"),
        "use_bias": Biases(r"(?:self_attn\.[qkvo]_proj|mlp\.c_(?:fc|proj))"),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, tied_by_default=True)
    return decoder.spec(
        "starcoder2",
        norm=layer_norm(view, "norm_epsilon"),
        ropes=decoder.rope(),
        windows=(sliding_window(view),) * decoder.layout.num_layers,
        act=activation(view, default="gelu_pytorch_tanh"),
        gated=False,
    )
