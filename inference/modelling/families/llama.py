"""Llama and the families that differ from it only in biases, norms of q and k, sliding windows and kinds of rotation.

llama, mistral, ministral, ministral3, qwen2, qwen3, mimo, seed_oss, cwm, helium, internlm3, iquestcoder: pre-norm
layers of grouped-query attention and a gated MLP. MiMo-7B is Qwen 2 with layers for drafting beside it
(https://arxiv.org/abs/2505.07608). The text models of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, SmolVLM and Idefics 3 are such:
for text, the three positions of a token that Qwen's rotate by are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import (
    FULL_ATTENTION,
    LLAMA_LIKE,
    MLP_BIAS,
    MROPE,
    NO_WINDOW,
    QKV_BIAS,
    QKVO_BIAS,
    QWEN,
    ROPE_MEMBERS,
    Table,
    harmless,
    used,
)
from inference.modelling.families.config_keys import USED, Biases, Harmless, Members, Only
from inference.modelling.families.config_values import integer_with_evidence, rms_norm
from inference.modelling.families.rope_config import described_rope, read_query_growth
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import (
    DEFAULT_MAX_WINDOW_LAYERS,
    DEFAULT_WINDOW,
    TYPES,
    layer_types,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.spec import ModelSpec

MISTRAL: Table = {**LLAMA_LIKE, **used("sliding_window")}
MINISTRAL3_ROPE = Members(
    {
        **ROPE_MEMBERS,
        "llama_4_scaling_beta": USED,
        "max_position_embeddings": Harmless("the model's own says it"),
    }
)
MINISTRAL3: Table = {**MISTRAL, "rope_parameters": MINISTRAL3_ROPE, "rope_scaling": MINISTRAL3_ROPE}
LLAMA: Table = {
    **LLAMA_LIKE,
    **MROPE,
    "use_bias": Biases(r"(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)"),
    "bias": QKVO_BIAS,
    "is_llama_config": Harmless("says what model_type says"),
    "sliding_window": NO_WINDOW,
    "use_sliding_window": Only((False,), "the family has no windows"),
    "layer_types": FULL_ATTENTION,
    **harmless("of SmolVLM, no part of its text model", "perceiver_config", "pixel_shuffle_factor", "use_resampler"),
    "qk_layer_norms": Only((False,), "queries and keys aren't normed"),
    "neftune_noise_alpha": Harmless("training only"),
}
QWEN3: Table = {**QWEN, "attention_bias": QKVO_BIAS}
CONFIG_KEYS: Mapping[str, Table] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral3": MINISTRAL3,
    "iquestcoder": LLAMA_LIKE,
    "internlm3": {**LLAMA_LIKE, "qkv_bias": QKVO_BIAS, "bias": MLP_BIAS},
    "ministral": {**LLAMA_LIKE, **used("sliding_window", "layer_types")},
    "cwm": {**LLAMA_LIKE, **used("sliding_window", "layer_types")},
    "helium": LLAMA_LIKE,
    "seed_oss": {
        **LLAMA_LIKE,
        "attention_bias": QKV_BIAS,
        "attention_out_bias": Biases(r"self_attn\.o_proj"),
        "residual_dropout": Harmless("training only"),
    },
    "qwen2": QWEN,
    "qwen3": QWEN3,
    "qwen2_vl": {**QWEN, **around(QWEN)},
    "qwen2_5_vl": {**QWEN, **around(QWEN)},
    "qwen3_vl": around(QWEN3),
    "smolvlm": around(LLAMA),
    "idefics3": around(LLAMA),
    "mimo": {**QWEN, "num_nextn_predict_layers": Harmless("the layers for drafting are left out")},
}  # fmt: skip


EPS = {"helium": 1e-8, "cwm": 1e-5, "internlm3": 1e-5, "ministral3": 1e-5, "iquestcoder": 1e-5}
THETAS = {"helium": 100_000.0, "cwm": 1_000_000.0}
"""transformers' defaults where they are others."""
GROWING_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
"""Ministral 3's rotation where config.json describes none."""
TEXT_TYPES = {
    "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}  # fmt: skip
"""Text models of those that see pictures; the first published files of Qwen2-VL have their keys beside the others'."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    model_type = view.config.string("model_type", default="llama")
    model_type = TEXT_TYPES.get(model_type, model_type)
    if model_type == "ministral3" and described_rope(view.config) is None:
        view = view.changed(rope_parameters=undescribed_rope(view, GROWING_ROPE))
    decoder = AttentionDecoder.read(view)
    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=EPS.get(model_type, 1e-6)),
        ropes=decoder.rope(
            default_theta=THETAS.get(model_type, 10_000.0),
            interleaved=model_type == "helium",
            renamed_types={"mrope": "default"} if model_type in ("qwen2", "qwen3") else None,
        ),
        windows=_windows(view, model_type, decoder.layout.num_layers),
        qk_norm="head" if model_type == "qwen3" else None,
        attention_options={"query_growth": read_query_growth(view.config)} if model_type == "ministral3" else None,
    )


def undescribed_rope(view: CheckpointView, usual: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotation where config.json describes none: ``usual``, with the base that is stated by itself."""
    theta = view.config.get("rope_theta")
    return usual if theta is None else {**usual, "rope_theta": theta}


def _windows(view: CheckpointView, model_type: str, count: int) -> tuple[int | None, ...]:
    """Mistral slides in all layers; Qwen 2 and 3, if at all, in those that ``layer_types`` names or in the last."""
    if model_type in ("ministral", "cwm"):
        default = tuple(TYPES[model_type == "cwm" and number % 4 == 0] for number in range(count))
        return window_of_each_layer(
            layer_types(view, count, TYPES) or default, sliding_window(view, default=2 * DEFAULT_WINDOW)
        )
    if model_type in ("mistral", "ministral3"):
        return (sliding_window(view, default=DEFAULT_WINDOW if model_type == "mistral" else None),) * count
    if model_type not in ("qwen2", "qwen3", "mimo") or not view.config.boolean("use_sliding_window", default=False):
        return (None,) * count
    window = sliding_window(view, default=DEFAULT_WINDOW)
    types = layer_types(view, count, TYPES)
    if types is None:
        key = "max_window_layers"
        full = integer_with_evidence(view, f"attention.{key}", (key,), DEFAULT_MAX_WINDOW_LAYERS, low=0)
        types = tuple("full_attention" if number < full else "sliding_attention" for number in range(count))
    return window_of_each_layer(types, window)
