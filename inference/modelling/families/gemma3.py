"""Gemma 3: Gemma 2's layers with norms of q and k, five windowed layers to a full one, two rotations; SigLIP's tower.

Windowed layers rotate by a base of their own, and only full ones stretch their positions. A picture is 256 tokens,
which see each other both ways.

Source: https://arxiv.org/abs/2503.19786, and transformers' ``gemma3_text`` for what config.json may leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.checks import OTHER_PARTS, IgnoredTensors
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.gemma2 import gemma_activation, read_gemma, read_scale, read_softcap, refuse_encoder
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.vision_part import (
    TowerOptions,
    colours,
    preprocessor_config,
    read_tower,
    vision_part,
    with_parameters,
)
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Piece, Source, tensor
from inference.modelling.vision.specs import PooledProjectorSpec, VisionSpec
from inference.values.images import ImageLayout, ImagePrompt

GEMMA3: Table = {
    **LLAMA_LIKE,
    **used(
        "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "final_logit_softcapping",
        "use_bidirectional_attention", "rope_local_base_freq", "sliding_window_pattern",
    ),
    "attn_logit_softcapping": Only((), "transformers doesn't apply it"),
    "hidden_act": Harmless("hidden_activation says it"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"gemma3_text": GEMMA3, "gemma3": around(GEMMA3)}

UNUSED = (IgnoredTensors(re.compile(r"vision_tower\..*\bhead\."), "a pooled row, which isn't used"),)
FIRST_VISION_TENSOR = "embeddings.patch_embedding.weight"
IMAGE_PROMPT = ImagePrompt(
    placeholder="<image_soft_token>",
    printed="<start_of_image>",
    before="\n\n<start_of_image>",
    after="<end_of_image>\n\n",
)

# transformers' defaults.
CONTEXT = 131072
WINDOW = 4096
PATTERN = 6
"""Every so many layers, one sees all positions."""
THETA = 1_000_000.0
LOCAL_THETA = 10_000.0


def build_spec(view: CheckpointView) -> ModelSpec:
    text = build_text(text_part(view, reads_others=True))
    return replace(
        text, vision=vision_part(view, OTHER_PARTS.names, lambda found: _read_vision(found, text), ignored=UNUSED)
    )


def build_text(view: CheckpointView) -> ModelSpec:
    """The text model alone."""
    refuse_encoder(view)
    decoder = read_gemma(view, context=CONTEXT)
    types = _types(view, decoder.layout.num_layers)
    ropes = ropes_by_type(view, decoder.rope, theta=THETA, local_theta=LOCAL_THETA)
    return decoder.spec(
        "gemma3_text",
        norm=rms_norm(view, offset=1.0),
        ropes=[ropes[kind] for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=WINDOW)),
        qk_norm="head",
        act=gemma_activation(view),
        attention_options={"scale": read_scale(view)},
        embedding_multiplier=math.sqrt(decoder.layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", None),
        ignored=(OTHER_PARTS,),
    )


def _read_vision(view: CheckpointView, text: ModelSpec) -> VisionSpec:
    given = view.config.get("vision_config")
    config = CheckpointConfig(given if isinstance(given, Mapping) else {})
    first = next((name for name in view.tensors if name.endswith(FIRST_VISION_TENSOR)), "")
    if not first:
        raise UnsupportedArchitecture(f"no tensor ends with {FIRST_VISION_TENSOR}.", param="vision_config")
    eps = config.number("layer_norm_eps", default=1e-6)
    config.string("hidden_act", default="gelu_pytorch_tanh", choices=("gelu_pytorch_tanh",))
    options = TowerOptions(
        first.removesuffix(FIRST_VISION_TENSOR),
        "gelu_tanh",
        eps,
        num_heads=config.integer("num_attention_heads", default=16),
        last_norm="post_layernorm",
    )
    tower, tower_sources = read_tower(view, options)
    side = math.isqrt(view.config.integer("mm_tokens_per_image", default=256))
    if tower.side % side or tower.has_class_row:
        raise UnsupportedArchitecture(
            f"{tower.side} patches along a side can't be pooled to {side} tokens.", param="mm_tokens_per_image"
        )
    norm, projection = (
        next((name for name in view.tensors if name.endswith(f"multi_modal_projector.{part}")), part)
        for part in ("mm_soft_emb_norm.weight", "mm_input_projection_weight")
    )
    beside = preprocessor_config(view)
    if beside.get("do_pan_and_scan"):
        view.facts.warn("preprocessor_config.json asks for crops of wide images (do_pan_and_scan); none are made.")
    spec = VisionSpec(
        hidden_size=text.hidden_size,
        tower=tower,
        projector=PooledProjectorSpec(NormSpec("rms", eps, offset=1.0)),
        layout=ImageLayout("square", tower.tile, side),
        prompt=IMAGE_PROMPT,
        mean=colours(beside, "image_mean", (0.5, 0.5, 0.5)),
        std=colours(beside, "image_std", (0.5, 0.5, 0.5)),
        sees_whole_image=True,
    )
    projector = {"norm.weight": tensor(norm), "projection.weight": Source((Piece(projection, transpose=True),))}
    return with_parameters(spec, tower_sources, projector)


def _types(view: CheckpointView, count: int) -> tuple[str, ...]:
    """By ``layer_types``, or by ``sliding_window_pattern``: the last of so many layers is a full one."""
    types = layer_types(view, count, TYPES)
    if types is not None:
        return types
    pattern = view.config.integer("sliding_window_pattern", "_sliding_window_pattern", default=PATTERN)
    return full_every(pattern, count)
