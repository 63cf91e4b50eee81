"""Molmo 2, its text model: Qwen 3's or OLMo 2's layers under names of its own, and rows of tokens for pictures.

Those rows, behind the text's in the embedding, are left out: the head has none for them. Published files have fused
projections, of the MLP with up before gate, and the embedding in two parts.
Source: https://huggingface.co/allenai/Molmo2-8B, and transformers' ``molmo2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import DECODER, ROPE, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import check_size, rms_norm
from inference.modelling.families.decoder_layout import OUTER_PREFIXES, DecoderLayout
from inference.modelling.families.head_sizes import with_default_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import RopeSpec
from inference.modelling.specs.sources import Piece, Source

PARTS = ("wte.embedding", "wte.new_embedding")
"""The embedding in published files: of the text's tokens, and of further ones."""
SPARE_PART = IgnoredTensors(re.compile(r"\.wte\.new_embedding$"), "rows of tokens for pictures, which the head lacks")
NORMS = ("attn_norm", "ff_norm")
IN_MEMORY_NORMS = ("input_layernorm", "post_attention_layernorm")
PUBLISHED = LayerNames(
    fused=Fused("att_proj"), output="attn_out", mlp_matrices=MLPNames(down="ff_out", gate_up="ff_proj")
)
PREFIXES = ("model.transformer.", "transformer.", "model.", "")
BIASES = Biases(r"self_attn\.(?:[qkv]|att)_proj")
TEXT: Table = {
    **DECODER,
    **ROPE,
    **aliases("rms_norm_eps", "layer_norm_eps"),
    **used("additional_vocab_size", "qk_norm_type", "rope_scaling_layers", "norm_after"),
    **harmless("training only", "residual_dropout", "embedding_dropout"),
    "attention_bias": BIASES,
    "qkv_bias": BIASES,
    "use_qk_norm": Only((True,), "queries and keys are normed"),
    "tie_word_embeddings": Only((False,), "the head has fewer rows than the embedding"),
}
CONFIG_KEYS: Mapping[str, Table] = {
    "molmo2_text": TEXT,
    "molmo2": {
        **around(TEXT),
        **harmless(
            "pictures aren't read", "adapter_config", "vit_config", "low_res_image_start_token_id", "image_low_res_id",
            "image_patch_id", "image_col_id", "frame_start_token_id", "frame_end_token_id", "use_frame_special_tokens",
        ),
        "tie_word_embeddings": TEXT["tie_word_embeddings"],
    },
}  # fmt: skip

# transformers' defaults.
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CONTEXT = 36864


def build_spec(view: CheckpointView) -> ModelSpec:
    view = with_default_heads(text_part(view), HEADS)
    prefix, embedding = _embedding(view)
    layers = "blocks." if f"{prefix}blocks.0.{NORMS[0]}.weight" in view.tensors else "layers."
    is_published = f"{prefix}{layers}0.{NORMS[0]}.weight" in view.tensors
    names = _names(view, is_published=is_published)
    decoder = AttentionDecoder.read(
        view,
        replace(names, final_norm="ln_f" if f"{prefix}ln_f.weight" in view.tensors else "norm"),
        default_head_dim=HEAD_DIM,
        fused_kv_heads=view.config.integer("num_key_value_heads", "num_kv_heads", default=KV_HEADS),
        prefixes=PREFIXES,
        embeddings=(PARTS[0], "embed_tokens.weight"),
        layers=layers,
        spare_rows=matrix_shape(view.tensors, embedding[0])[0] - matrix_shape(view.tensors, "lm_head.weight")[0],
        default_max_position_embeddings=CONTEXT,
    )
    layout = decoder.layout
    check_size(view, decoder.heads.head_dim, "rows of q, k and v by heads", "head_dim")
    kind = view.config.string("qk_norm_type", default="qwen3", choices=("qwen3", "olmo"))
    return decoder.spec(
        "molmo2_text",
        norm=rms_norm(view, "rms_norm_eps", "layer_norm_eps"),
        ropes=_ropes(view, decoder.rope(), layout.num_layers),
        qk_norm="head" if kind == "qwen3" else "row",
        adapt=lambda number, layer: _up_before_gate(view, layout, number, layer) if is_published else layer,
        ignored=(SPARE_PART,),
        outer_sources={"embed_tokens.weight": _text_rows(view, embedding, layout.vocab_size)},
    )


def _embedding(view: CheckpointView) -> tuple[str, tuple[str, ...]]:
    """What stands before the text model's names, and the tensors of the embedding.

    Raises:
        MissingTensor: There is no embedding, of two parts only one, or no head.
    """
    if "lm_head.weight" not in view.tensors:
        raise MissingTensor("there is no lm_head.weight; the embedding can't stand in for it.", param="lm_head.weight")
    for outer in OUTER_PREFIXES:
        for prefix in PREFIXES:
            base = outer + prefix
            for parts in (PARTS, ("embed_tokens.weight",)):
                if base + parts[0] in view.tensors:
                    return base, tuple(base + part for part in parts)
    raise MissingTensor(f"there is neither {PREFIXES[0]}{PARTS[0]} nor embed_tokens.weight.", param=PARTS[0])


def _names(view: CheckpointView, *, is_published: bool) -> LayerNames:
    """The names of a layer's parts; its norms stand before the mixers, or behind them (``norm_after``)."""
    token, channel = NORMS if is_published else IN_MEMORY_NORMS
    is_after = view.config.boolean("norm_after", default=False)
    ours = ("token_post_norm", "channel_post_norm") if is_after else ("token_norm", "channel_norm")
    return replace(PUBLISHED if is_published else LayerNames(), norms=dict(zip(ours, (token, channel), strict=True)))


def _text_rows(view: CheckpointView, embedding: tuple[str, ...], count: int) -> Source:
    """The first rows of the embedding, wherever its parts meet.

    Raises:
        TensorShapeMismatch: config.json states another number of rows behind them, or the embedding has fewer.
    """
    rows = [matrix_shape(view.tensors, name)[0] for name in embedding]
    check_size(view, sum(rows) - count, f"rows of {' and '.join(embedding)} behind {count}", "additional_vocab_size")
    pieces, left = [], count
    for name, found in zip(embedding, rows, strict=True):
        if left:
            pieces.append(Piece(name, rows=(0, min(found, left))))
        left -= min(found, left)
    return Source(tuple(pieces))


def _up_before_gate(view: CheckpointView, layout: DecoderLayout, number: int, layer: HeadLayer) -> HeadLayer:
    """The layer, whose files have the rows of up before those of the gate.

    Raises:
        TensorShapeMismatch: They aren't as many as the columns of the last matrix, or they have biases.
    """
    spec, sources = layer
    assert isinstance(spec.channel_mixer, MLPSpec)
    base, width = f"{layout.layer(number)}mlp.", spec.channel_mixer.intermediate_size
    name = f"{base}ff_proj.weight"
    rows = matrix_shape(view.tensors, name)[0]
    if rows != 2 * width or spec.channel_mixer.bias:
        raise TensorShapeMismatch(
            f"{name} has {rows} rows{' and a bias' if spec.channel_mixer.bias else ''}; up and gate of {width} columns "
            f"in {base}ff_out.weight are {2 * width} rows, without biases.",
            param=name,
        )
    parts = (Piece(name, rows=(width, 2 * width)), Piece(name, rows=(0, width)))
    return spec, {**sources, "channel_mixer.gate_up_proj.weight": Source(parts)}


def _ropes(view: CheckpointView, rope: RopeSpec, count: int) -> list[RopeSpec]:
    """The rotation of each layer; those that ``rope_scaling_layers`` doesn't name aren't stretched.

    Raises:
        CorruptCheckpoint: It names a layer that isn't there.
    """
    stated = view.config.integers("rope_scaling_layers")
    scaled = stated if view.config.values.get("rope_scaling_layers") is not None else range(count)
    missing = next((number for number in scaled if not 0 <= number < count), None)
    if missing is not None:
        raise CorruptCheckpoint(
            f"config.json: rope_scaling_layers names layer {missing}, but there are {count} layers.",
            param="rope_scaling_layers",
        )
    return [rope if number in scaled else replace(rope, scaling=None) for number in range(count)]
