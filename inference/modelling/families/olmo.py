"""OLMo, OLMo 2 and OLMo 3: norms without weights; then only behind the mixers and over queries and keys; then windows.

Source: https://arxiv.org/abs/2402.00838, https://arxiv.org/abs/2501.00656, https://arxiv.org/abs/2512.13961, and
transformers' ``olmo``, ``olmo2`` and ``olmo3``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import POST_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, used
from inference.modelling.families.config_values import number_with_evidence, rms_norm
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec

CONTEXT = 2048
WINDOW = 4096
THETA_3 = 500_000.0
POST_NAMES = LayerNames(norms=POST_NORMS)
WITHOUT_EPS = {key: rule for key, rule in WITH_ROPE.items() if key != "rms_norm_eps"}
CONFIG_KEYS: Mapping[str, Table] = {
    "olmo": {**WITHOUT_EPS, **used("clip_qkv")},
    "olmo2": WITH_ROPE,
    "olmo3": {**WITH_ROPE, **used("sliding_window", "layer_types")},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="olmo2")
    names = LayerNames() if model_type == "olmo" else POST_NAMES
    decoder = AttentionDecoder.read(view, names, default_max_position_embeddings=CONTEXT)
    if model_type == "olmo":
        clip = None
        if "clip_qkv" in view.config:
            clip = number_with_evidence(view, "attention.clip_qkv", ("clip_qkv",), 0.0, low=1e-6, high=1e9)
        norm = NormSpec("layer", 1e-5, weightless=True)
        return decoder.spec(model_type, norm=norm, ropes=decoder.rope(), attention_options={"qkv_clip": clip})
    norm = rms_norm(view, default=1e-5)
    if model_type == "olmo2":
        return decoder.spec(model_type, norm=norm, ropes=decoder.rope(), qk_norm="row")
    count = decoder.layout.num_layers
    types = layer_types(view, count, TYPES)
    if types is None:
        types = full_every(4, count)
    ropes = ropes_by_type(view, decoder.rope, theta=THETA_3)
    windows = window_of_each_layer(types, sliding_window(view, default=WINDOW))
    return decoder.spec(model_type, norm=norm, ropes=[ropes[kind] for kind in types], windows=windows, qk_norm="row")
