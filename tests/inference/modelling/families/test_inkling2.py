"""Inkling 2: both namings, inputs and blocks by layer, padding of the vocabulary, contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, MissingTensor
from inference.modelling.families.inkling2 import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec
from inference.modelling.specs.inkling2 import BlockResidualSpec, BlockStreamsSpec, ClippedAttentionSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Piece
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, fact, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "swa_num_attention_heads": 3,
    "swa_num_key_value_heads": 1, "swa_head_dim": 6, "sliding_window_size": 5, "d_rel": 3, "rel_extent": 7,
    "conv_kernel_size": 4, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "moe_intermediate_size": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_layers_per_attn_res_block": 2,
}  # fmt: skip
PUBLISHED_NAMES = {
    ".self_attn.q_proj": ".attn.wq_du", ".self_attn.k_proj": ".attn.wk_dv", ".self_attn.v_proj": ".attn.wv_dv",
    ".self_attn.r_proj": ".attn.wr_du", ".self_attn.o_proj": ".attn.wo_ud", ".self_attn.gate_proj": ".attn.gate_attn",
    ".self_attn.sink_proj": ".attn.attn_sink_proj", ".self_attn.": ".attn.", ".conv1d.": ".",
    ".static_weight": ".static_w", ".weight_proj.weight": ".weight_proj", "_input_layernorm": "_input_norm",
    "post_attention_layernorm": "mlp_norm", "input_layernorm": "attn_norm",
    "post_attention_convolution": "attn_sconv", "post_mlp_convolution": "mlp_sconv",
    "gate.e_score_correction_bias": "gate.bias", "experts.down_proj": "experts.w2_weight",
    "experts.gate_up_proj": "experts.w13_weight", "lm_head.": "model.llm.unembed.",
    "model.embed_tokens.embed_norm": "model.llm.embed_norm", "model.embed_tokens": "model.llm.embed",
    "model.layers.1.attention_input.query": "model.llm.attn_res.attn_queries.0",
    "model.layers.2.attention_input.query": "model.llm.attn_res.attn_queries.1",
    **{f"model.layers.{number}.mlp_input.query": f"model.llm.attn_res.mlp_queries.{number}" for number in range(3)},
    "model.final_input.query": "model.llm.attn_res.output_query", "model.norm": "model.llm.norm",
    "model.layers": "model.llm.layers",
}  # fmt: skip


def attention(base: str, heads: int, kv_heads: int, width: int, extent: int, *, is_full: bool) -> Shapes:
    rows = {
        "q_proj": heads * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width, "r_proj": heads * 3,
        "gate_proj": heads * width, "sink_proj": heads,
    }  # fmt: skip
    convs: Shapes = {f"{base}{name}_sconv.conv1d.weight": (kv_heads * width, 1, 4) for name in "kv"}
    if is_full:
        convs = {f"{base}{name}_sconv.static_weight": (4, kv_heads * width) for name in "kv"}
        convs |= {f"{base}{name}_sconv.weight_proj.weight": (kv_heads * 4, HIDDEN) for name in "kv"}
    return {
        **{f"{base}{name}.weight": (count, HIDDEN) for name, count in rows.items()},
        **convs,
        f"{base}q_l2_clip.scale": (heads, width),
        f"{base}rel_l2_clip.scale": (heads, 3),
        f"{base}o_proj.weight": (HIDDEN, heads * width),
        f"{base}rel_logits_proj.proj": (3, extent),
    }


def layer(number: int, *, is_full: bool) -> Shapes:
    base = f"model.layers.{number}."
    heads = (4, 2, 4, 7) if is_full else (3, 1, 6, 5)
    norms = [f"{kind}_input_layernorm" for kind in "qkv"] if is_full else ["input_layernorm"]
    found: Shapes = {f"{base}{name}.weight": (HIDDEN,) for name in (*norms, "post_attention_layernorm")}
    if number:
        found[f"{base}attention_input.query"] = (3, HIDDEN) if is_full else (HIDDEN,)
    return {
        **found,
        **attention(f"{base}self_attn.", *heads, is_full=is_full),
        **{f"{base}post_{name}_convolution.conv1d.weight": (HIDDEN, 1, 4) for name in ("attention", "mlp")},
        f"{base}mlp_input.query": (HIDDEN,),
        f"{base}mlp.gate.weight": (4, HIDDEN),
        f"{base}mlp.gate.e_score_correction_bias": (4,),
        f"{base}mlp.experts.gate_up_proj": (4, 16, HIDDEN),
        f"{base}mlp.experts.down_proj": (4, HIDDEN, 8),
    }


def shapes() -> Shapes:
    found = outer() | {"model.embed_tokens.embed_norm.weight": (HIDDEN,), "model.final_input.query": (HIDDEN,)}
    for number in range(3):
        found |= layer(number, is_full=number == 1)
    return found


def published() -> Shapes:
    """The same in the names of published files."""
    found = shapes()
    for ours, theirs in PUBLISHED_NAMES.items():
        found = {name.replace(ours, theirs): shape for name, shape in found.items()}
    return found


def attentions(spec: ModelSpec) -> list[ClippedAttentionSpec]:
    found = []
    for one in spec.layers:
        assert isinstance(one.token_mixer, ClippedAttentionSpec)
        found.append(one.token_mixer)
    return found


def test_layers_differ_in_heads_inputs_and_taps() -> None:
    first, second, third = attentions(build_spec(view_of(shapes(), CONFIG | {"log_scaling_n_floor": 9})))
    assert first == third
    assert (first.num_heads, first.num_kv_heads, first.head_dim, first.scale) == (3, 1, 6, 6**-0.5)
    assert (second.num_heads, second.num_kv_heads, second.head_dim, second.scale) == (4, 2, 4, 0.5)
    assert (first.sliding_window, first.extent, first.score_growth, first.has_three_inputs) == (5, 5, None, False)
    assert (second.sliding_window, second.extent, second.score_growth) == (None, 7, (0.1, 9))
    assert second.has_three_inputs and (second.qk_limit, second.relative_limit) == (512**0.5, 8.0)
    assert (first.conv_scale, second.conv_scale) == (5**-0.5, 1 / 3)
    assert all(one.output_gate and one.v_norm == NormSpec(eps=1e-6, weightless=True) for one in (first, second))
    assert attentions(build_spec(view_of(shapes(), CONFIG)))[1].score_growth == (0.1, 128000)


def test_blocks_begin_every_few_layers() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    norm = NormSpec(eps=1e-6)
    assert [one.blocks for one in spec.layers] == [
        BlockResidualSpec(norm, begins_block=True, reads_embedding=True),
        BlockResidualSpec(norm, num_inputs=3),
        BlockResidualSpec(norm, begins_block=True),
    ]
    assert spec.streams == BlockStreamsSpec() and spec.logits_softcap == 30.0
    assert all(one.mixer_convs == MixerConvsSpec(HIDDEN, 4, 5**-0.5) for one in spec.layers)
    assert all(one.token_norm is None and one.channel_norm is None for one in spec.layers)
    usual = build_spec(view_of(shapes(), {**CONFIG, "n_layers_per_attn_res_block": None}))
    assert [one.blocks is not None and one.blocks.begins_block for one in usual.layers] == [True, False, False]


def test_experts_have_caps_and_no_shared_ones() -> None:
    stated = CONFIG | {"mlp_gate_softcap": 3.0, "route_scale": 2.5}
    for one in build_spec(view_of(shapes(), stated)).layers:
        assert one.channel_mixer == MoESpec(
            4, 2, 8, scoring="sigmoid", normalise_eps=1e-20, routed_scaling_factor=2.5, correction_bias=True,
            softcaps=(3.0, 25.0),
        )  # fmt: skip


def test_published_files_are_the_same_model() -> None:
    stated = {key: value for key, value in CONFIG.items() if key != "conv_kernel_size"}
    stated |= {"layer_types": None, "local_layer_ids": [0, 2], "sconv_kernel_size": 4, "model_max_length": 1 << 20}
    found, spec = build_spec(view_of(published(), stated)), build_spec(view_of(shapes(), CONFIG))
    assert found.layers == spec.layers and found.parameters.keys() == spec.parameters.keys()
    name = "model.llm.layers.1.mlp.experts.w13_weight"
    turns = found.parameters["layers.1.channel_mixer.experts.gate_up_proj"]
    assert turns.pieces == (Piece(name, index=-1, stride=(0, 2)), Piece(name, index=-1, stride=(1, 2)))
    assert turns.num_experts == 4
    assert found.parameters["layers.2.blocks.token.query"].pieces == (
        Piece("model.llm.attn_res.attn_queries.1", reshape=(1, HIDDEN)),
    )
    assert found.parameters["layers.2.blocks.channel.query"].pieces[0].name == "model.llm.attn_res.mlp_queries.2"


def test_pictures_and_layers_that_draft_are_left_out() -> None:
    others = {"model.visual.proj_in.weight": (9, 8), "model.mtp.layers.0.attn_norm.weight": (HIDDEN,)}
    view = view_of(published() | others, {"model_type": "inkling2", "text_config": CONFIG})
    spec = family_builder("inkling2")(view)
    assert spec.model_type == "inkling2_text" and spec.hidden_size == HIDDEN
    assert fact(view, "vision")[0] == fact(view, "prediction_layers")[0] == "left out"


@pytest.mark.parametrize(("size", "rows"), [(VOCAB - 4, VOCAB - 4), (VOCAB + 9, VOCAB)])
def test_padding_of_the_vocabulary_is_cut(size: int, rows: int) -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"unpadded_vocab_size": size, "vocab_size": VOCAB}))
    assert spec.vocab_size == rows
    for name in ("embed_tokens.weight", "lm_head.weight"):
        assert spec.parameters[name].pieces[0].rows == (None if rows == VOCAB else (0, rows))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"swa_head_dim": 4}, "swa_head_dim"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads"),
        ({"d_rel": 4}, "d_rel"),
        ({"rel_extent": 5}, "rel_extent"),
        ({"sliding_window_size": 7}, "sliding_window_size"),
        ({"layer_types": ["hybrid", "hybrid", "hybrid_sliding"]}, "layer 0 is hybrid .* missing"),
        ({"layer_types": ["hybrid_sliding"] * 3}, "layer 1 is hybrid_sliding .* there"),
        ({"moe_intermediate_size": 9}, "moe_intermediate_size"),
        ({"intermediate_size": 9}, "intermediate_size"),
        ({"n_routed_experts": 6}, "n_routed_experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"n_layers_per_attn_res_block": 0}, "n_layers_per_attn_res_block"),
        ({"qk_l2_clip_threshold": 0}, "qk_l2_clip_threshold"),
        ({"mlp_up_softcap": -1.0}, "mlp_up_softcap"),
        ({"logits_mup_width_multiplier": 24.0}, "logits_mup_width_multiplier"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        family_builder("inkling2_text")(view_of(shapes(), CONFIG | change))


@pytest.mark.parametrize("name", ["attention_input.query", "q_l2_clip.scale", "final_input", "lm_head"])
def test_what_is_missing_is_named(name: str) -> None:
    found = {tensor: shape for tensor, shape in shapes().items() if name not in tensor}
    with pytest.raises(MissingTensor, match=name):
        build_spec(view_of(found, CONFIG))


def test_fewer_rows_than_a_head_has_are_refused() -> None:
    found = shapes() | {"model.layers.0.self_attn.k_proj.weight": (3, HIDDEN)}
    stated = {key: value for key, value in CONFIG.items() if key != "swa_num_key_value_heads"}
    with pytest.raises(CheckpointError, match="3 query heads can't share 0 key/value heads"):
        build_spec(view_of(found, stated))
