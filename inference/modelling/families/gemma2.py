"""Gemma 2: norms before and after each mixer, softcaps, a sliding window in every other layer.

Source: https://arxiv.org/abs/2408.00118, and transformers' ``gemma2`` for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.attention_decoder import SANDWICH_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "gemma2": {
        **LLAMA_LIKE,
        **used(
            "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "attn_logit_softcapping",
            "final_logit_softcapping", "use_bidirectional_attention",
        ),
        "hidden_act": Harmless("hidden_activation says it"),
        "sliding_window_size": Harmless("an early name beside sliding_window"),
    },
}  # fmt: skip

# transformers' defaults, which differ from those of the other families.
HEAD_DIM = 256
CONTEXT = 8192
WINDOW = 4096


def build_spec(
    view: CheckpointView, model_type: str = "gemma2", norms: Mapping[str, str] = SANDWICH_NORMS
) -> ModelSpec:
    refuse_encoder(view)
    decoder = read_gemma(view, context=CONTEXT, norms=norms)
    count = decoder.layout.num_layers
    types = layer_types(view, count, TYPES)
    if types is None:
        types = full_every(2, count)
    return decoder.spec(
        model_type,
        norm=rms_norm(view, offset=1.0),
        ropes=decoder.rope(),
        windows=window_of_each_layer(types, sliding_window(view, default=WINDOW)),
        act=gemma_activation(view),
        attention_options={"scale": read_scale(view), "softcap": read_softcap(view, "attn_logit_softcapping", 50.0)},
        embedding_multiplier=math.sqrt(decoder.layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", 30.0),
    )


def read_gemma(view: CheckpointView, *, context: int, norms: Mapping[str, str] = SANDWICH_NORMS) -> AttentionDecoder:
    """The sizes of any Gemma: a tied head, and heads of 256 values where nothing says otherwise."""
    return AttentionDecoder.read(
        view,
        LayerNames(norms=norms),
        default_head_dim=HEAD_DIM,
        tied_by_default=True,
        default_max_position_embeddings=context,
    )


def gemma_activation(view: CheckpointView) -> str:
    return activation(view, "hidden_activation", default="gelu_pytorch_tanh")


def read_scale(view: CheckpointView) -> float:
    """The factor of q·k, whose inverse square config.json has."""
    scalar = number_with_evidence(
        view, "attention.query_pre_attn_scalar", ("query_pre_attn_scalar",), 256.0, low=1e-6, high=1e9
    )
    return float(scalar**-0.5)


def refuse_encoder(view: CheckpointView) -> None:
    """Refuse a model whose attention sees later tokens.

    Raises:
        UnsupportedArchitecture: config.json says so.
    """
    if view.config.get("use_bidirectional_attention"):
        raise UnsupportedArchitecture(
            "config.json: use_bidirectional_attention is on; this is an encoder, which can't generate text.",
            param="use_bidirectional_attention",
        )


def read_softcap(view: CheckpointView, key: str, default: float | None) -> float | None:
    """A cap of scores or logits: null switches it off, an absent key means the default."""
    if view.config.values.get(key, default) is None:
        return None
    return number_with_evidence(view, key, (key,), default or 0.0, low=1e-6, high=1e9)
