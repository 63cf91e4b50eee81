"""Mistral Large 4: GLM-5's attention with learned softmax scales and shared latents; Mistral Small 4's experts.

Every fourth layer has no positions; the frequencies of the others are multiplied by learned numbers. Only its text
model is read.

Source: transformers' ``mistral_large4``, also for what config.json may leave out, and its ``conversion_mapping`` for
the names of published files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.deepseek import DENSE, channel_mixer, check_expert_layers
from inference.modelling.families.gemma2 import read_softcap
from inference.modelling.families.grouped_moe import GROUPED_MOE
from inference.modelling.families.latent_attention import mla_sources, mla_spec, read_indexer
from inference.modelling.families.llama import undescribed_rope
from inference.modelling.families.llama4 import rotating_layers
from inference.modelling.families.rope_config import described_rope, read_rope, yarn_softmax_multiplier
from inference.modelling.families.shared_choice import TYPE_KEYS, choice_sources, scheduled_types, unused_indexers
from inference.modelling.families.stored_names import names_in_memory, with_stored_names
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, tensor

ABSENT = ("q_lora_rank", "mlp_bias", "embedding_initializer_range")
"""Keys of DeepSeek's dense layers that the type doesn't have."""
TEXT: Table = {
    **{key: rule for key, rule in DENSE.items() if key not in ABSENT},
    **{key: rule for key, rule in GROUPED_MOE.items() if key != "norm_topk_prob"},
    **used(
        "mlp_layer_types", "index_topk", "index_head_dim", "index_n_heads", *TYPE_KEYS, "no_rope_layers",
        "no_rope_layer_interval", "kv_source_layers", "final_logit_softcapping",
    ),
    "attention_bias": Biases(r"(?:self_attn\.(?:kv_a_proj_with_mqa|o_proj)|layers\.\d+\.attention\.(?:wkv_a\w+|wo))"),
    "layer_types": Only(("indexed_attention",), "every layer chooses its keys"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"mistral_large4": around(TEXT), "mistral_large4_text": TEXT}

CONTEXT = 1 << 20
ROTATED = 64
SOFTCAP = 30.0
ROPE: Mapping[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2048.0, "original_max_position_embeddings": 512,
    "attention_factor": 1.0,
}  # fmt: skip
"""The rotation of a config.json that describes none."""
HIDDEN_NORM = NormSpec("layer", 1e-6)
SOURCES = "kv_source_layers"
UNUSED = IgnoredTensors(re.compile(r"(^|\.)rotary_emb\.alpha$"), "factors of frequencies, where no layer rotates")
STORED = (
    (r"^(layers|norm|embed_tokens|rotary_emb)\.", r"model.\1."),
    (r"^tok_embeddings\.", "model.embed_tokens."),
    (r"^lerope\.", "model.rotary_emb."),
    (r"^output\.", "lm_head."),
    (r"\.attention\.", ".self_attn."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.", ".mlp."),
    (r"(layers\.\d+)\.(gate|experts|shared_experts)\.", r"\1.mlp.\2."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
    (r"\.wq\.", ".q_proj."),
    (r"\.wo\.", ".o_proj."),
    (r"\.wkv_a_with_mqa\.", ".kv_a_proj_with_mqa."),
    (r"\.wkv_b\.", ".kv_b_proj."),
    (r"\.kv_a_norm\.", ".kv_a_layernorm."),
    (r"\.ssmax_scaling\.s$", ".softmax_scaling.scale"),
    (r"\.ssmax_scaling\.b$", ".softmax_scaling.bias"),
)
"""Names of published files to those in memory."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    rope = described_rope(view.config)
    view = view.changed(rope_parameters=undescribed_rope(view, ROPE) if rope is None else rope, rope_scaling=None)
    view, stored = names_in_memory(view, STORED)
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, default=1e-5), activation(view)
    check_expert_layers(view, layout)
    choices = choice_sources(view, layout, scheduled_types(view, layout.num_layers))
    attention = _attention(view, layout, norm)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        base = f"{layer}self_attn."
        mla = replace(attention(number), choice_source=choices[number])
        if choices[number] is None:
            indexer = replace(read_indexer(view, base, mla.rope), hidden_norm=HIDDEN_NORM, has_softmax_scale=True)
            mla = replace(mla, indexer=indexer)
        token = mla_sources(mla, base)
        if mla.learned_frequencies:
            token["frequency_exponents"] = tensor(f"{layout.prefix}rotary_emb.alpha")
        mixer, channel = channel_mixer(view, "mistral_large4", layer, act)
        return llama_layer(mla, mixer, norm), llama_parts(layer, token, channel)

    layers, sources = read_layers(layout.num_layers, read_layer)
    softcap = read_softcap(view, "final_logit_softcapping", SOFTCAP)
    ignored = (UNUSED, *unused_indexers(layout, choices))
    spec = decoder_spec(
        view, layout, "mistral_large4_text", layers, sources, norm, ignored=ignored, logits_softcap=softcap
    )
    return with_stored_names(spec, stored)


def _attention(view: CheckpointView, layout: DecoderLayout, norm: NormSpec) -> Callable[[int], MLASpec]:
    """The attention of a layer by its number; layers that rotate are alike, and so are the others."""
    rotates = rotating_layers(view, layout.num_layers)
    owners = _latent_sources(view, rotates)
    sizes = [view.config.optional_integer(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
    whole = None if None in sizes else sum(size or 0 for size in sizes)
    unrotated = view.changed(qk_nope_head_dim=whole, qk_rope_head_dim=None)
    rope = read_rope(view, sizes[1] or ROTATED, max_position_embeddings=layout.max_position_embeddings)
    forms: dict[bool, MLASpec] = {}
    for number, owner in enumerate(owners):
        is_rotating = rotates[number]
        if owner is not None or is_rotating in forms:
            continue
        spec = mla_spec(
            view if is_rotating else unrotated,
            f"{layout.layer(number)}self_attn.",
            layout.max_position_embeddings,
            interleaved=True if is_rotating else None,
        )
        forms[is_rotating] = replace(
            spec,
            scale=(spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5 * yarn_softmax_multiplier(rope),
            kv_a_norm=norm,
            has_softmax_scale=True,
            learned_frequencies=is_rotating,
        )
    return lambda number: replace(forms[rotates[number]], kv_source=owners[number])


def _latent_sources(view: CheckpointView, rotates: Sequence[bool]) -> tuple[int | None, ...]:
    """For each layer the number of the one whose latents it reads; None: its own.

    transformers has one place for the latents of layers that rotate and one for the others: a layer reads what the
    newest of its kind put there.

    Raises:
        CorruptCheckpoint: ``kv_source_layers`` names another layer, or not one for each.
    """
    count = len(rotates)
    stated = view.config.integers(SOURCES) or tuple(range(count))
    newest: dict[bool, int] = {}
    for number, source in enumerate(stated[:count]):
        is_own = source == number
        if is_own and number in stated[number + 1 :]:
            newest[rotates[number]] = number
        if len(stated) != count or not (is_own or newest.get(rotates[number]) == source):
            raise CorruptCheckpoint(
                f"config.json: {SOURCES} is {str(stated)[:80]}; each of its {count} entries must be the layer's own "
                "number, or that of the last earlier layer of its kind (with or without rotation) whose latents are "
                "shared.",
                param=SOURCES,
            )
    return tuple(None if source == number else source for number, source in enumerate(stated))
