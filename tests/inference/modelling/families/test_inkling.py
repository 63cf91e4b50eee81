"""Inkling: both namings, heads and windows by layer, padding of the vocabulary, and contradictions of config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inference.errors import CheckpointError, MissingTensor
from inference.modelling.families.inkling import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec, RelativeAttentionSpec, SharedMoESpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.sources import Piece
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, fact, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "swa_num_attention_heads": 3,
    "swa_num_key_value_heads": 1, "swa_head_dim": 6, "sliding_window_size": 5, "d_rel": 3, "rel_extent": 7,
    "conv_kernel_size": 4, "layer_types": ["hybrid_sliding", "hybrid"], "mlp_layer_types": ["dense", "sparse"],
    "intermediate_size": 24, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 2,
}  # fmt: skip
PUBLISHED_NAMES = {
    ".self_attn.q_proj": ".attn.wq_du", ".self_attn.k_proj": ".attn.wk_dv", ".self_attn.v_proj": ".attn.wv_dv",
    ".self_attn.r_proj": ".attn.wr_du", ".self_attn.o_proj": ".attn.wo_ud", ".self_attn.": ".attn.",
    ".conv1d.": ".", "post_attention_layernorm": "mlp_norm", "input_layernorm": "attn_norm",
    "gate.e_score_correction_bias": "gate.bias", "shared_experts.down_proj": "shared_experts.shared_w2_weight",
    "experts.down_proj": "experts.w2_weight", "mlp.down_proj": "mlp.w2_md", "lm_head.": "model.llm.unembed.",
    "model.embed_tokens.embed_norm": "model.llm.embed_norm", "model.embed_tokens": "model.llm.embed",
    "model.norm": "model.llm.norm", "model.layers": "model.llm.layers",
}  # fmt: skip


def attention(base: str, heads: int, kv_heads: int, width: int, extent: int) -> Shapes:
    rows = {"q_proj": heads * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width, "r_proj": heads * 3}
    return {
        **{f"{base}{name}.weight": (count, HIDDEN) for name, count in rows.items()},
        **{f"{base}{name}_norm.weight": (width,) for name in "qk"},
        **{f"{base}{name}_sconv.conv1d.weight": (kv_heads * width, 1, 4) for name in "kv"},
        f"{base}o_proj.weight": (HIDDEN, heads * width),
        f"{base}rel_logits_proj.proj": (3, extent),
    }


def shapes() -> Shapes:
    found = outer() | {"model.embed_tokens.embed_norm.weight": (HIDDEN,)}
    for number in range(2):
        layer = f"model.layers.{number}."
        found |= norms(layer)
        found |= {f"{layer}{name}_sconv.conv1d.weight": (HIDDEN, 1, 4) for name in ("attn", "mlp")}
        found |= attention(f"{layer}self_attn.", *((3, 1, 6, 5), (4, 2, 4, 7))[number])
    first, second = "model.layers.0.mlp.", "model.layers.1.mlp."
    return found | {
        f"{first}gate_proj.weight": (24, HIDDEN), f"{first}up_proj.weight": (24, HIDDEN),
        f"{first}down_proj.weight": (HIDDEN, 24), f"{first}global_scale": (1,),
        f"{second}gate.weight": (6, HIDDEN), f"{second}gate.e_score_correction_bias": (4,),
        f"{second}gate.global_scale": (1,),
        f"{second}experts.gate_up_proj": (4, 16, HIDDEN), f"{second}experts.down_proj": (4, HIDDEN, 8),
        f"{second}shared_experts.gate_proj": (2, 8, HIDDEN), f"{second}shared_experts.up_proj": (2, 8, HIDDEN),
        f"{second}shared_experts.down_proj": (2, HIDDEN, 8),
    }  # fmt: skip


def published() -> Shapes:
    """The same in the names and forms of published files."""
    found = {name: shape for name, shape in shapes().items() if "gate_" not in name and "up_proj" not in name}
    for ours, theirs in PUBLISHED_NAMES.items():
        found = {name.replace(ours, theirs): shape for name, shape in found.items()}
    return found | {
        "model.llm.layers.0.mlp.w13_dn.weight": (48, HIDDEN),
        "model.llm.layers.1.mlp.experts.w13_weight": (4, 16, HIDDEN),
        "model.llm.layers.1.mlp.shared_experts.shared_w13_weight": (2, 16, HIDDEN),
    }


def attentions(spec: ModelSpec) -> tuple[RelativeAttentionSpec, ...]:
    found = []
    for layer in spec.layers:
        assert isinstance(layer.token_mixer, RelativeAttentionSpec)
        found.append(layer.token_mixer)
    return tuple(found)


def test_layers_differ_in_heads_windows_and_scores() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"log_scaling_n_floor": 9}))
    first, second = attentions(spec)
    assert (first.num_heads, first.num_kv_heads, first.head_dim, first.scale) == (3, 1, 6, 1 / 6)
    assert (second.num_heads, second.num_kv_heads, second.head_dim, second.scale) == (4, 2, 4, 1 / 4)
    assert (first.sliding_window, first.extent, first.score_growth) == (5, 5, None)
    assert (second.sliding_window, second.extent, second.score_growth) == (None, 7, (0.1, 9))
    assert all(mixer.conv_kernel == 4 and mixer.relative_width == 3 and mixer.rope is None for mixer in (first, second))
    assert all(layer.mixer_convs == MixerConvsSpec(HIDDEN, 4) for layer in spec.layers)
    assert spec.embedding_norm is not None and spec.logits_multiplier == 1 / 24
    assert attentions(build_spec(view_of(shapes(), CONFIG)))[1].score_growth is None


def test_the_router_has_the_shared_experts_too() -> None:
    first, second = (layer.channel_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert first == MLPSpec(24, has_output_scale=True)
    assert isinstance(second, SharedMoESpec)
    assert (second.num_experts, second.num_shared_experts, second.top_k) == (4, 2, 2)
    assert (second.intermediate_size, second.routed_scaling_factor) == (8, 8.0)


def test_published_files_are_the_same_model() -> None:
    stated = {key: value for key, value in CONFIG.items() if key not in ("mlp_layer_types", "conv_kernel_size")}
    stated |= {"layer_types": None, "local_layer_ids": [0], "sconv_kernel_size": 4, "model_max_length": 131072}
    stated |= {"dense_mlp_idx": 1, "intermediate_size": 8, "dense_intermediate_size": 24}
    found, spec = build_spec(view_of(published(), stated)), build_spec(view_of(shapes(), CONFIG))
    assert found.layers == spec.layers and found.parameters.keys() == spec.parameters.keys()
    name = "model.llm.layers.1.mlp.experts.w13_weight"
    turns = found.parameters["layers.1.channel_mixer.experts.gate_up_proj"]
    assert turns.pieces == (Piece(name, index=-1, stride=(0, 2)), Piece(name, index=-1, stride=(1, 2)))
    assert turns.num_experts == 4


def test_parts_beside_the_text_model_are_left_out() -> None:
    others = {"model.audio.encoder.weight": (9, 8), "model.visual.final_norm.weight": (8,)}
    drafting = {"model.mtp.layers.0.attn_norm.weight": (HIDDEN,), "model.mtp.embed_norm.weight": (HIDDEN,)}
    view = view_of(published() | others | drafting, {"model_type": "inkling_mm_model", "text_config": CONFIG})
    spec = family_builder("inkling_mm_model")(view)
    assert spec.model_type == "inkling_text" and spec.hidden_size == HIDDEN
    assert fact(view, "vision")[0] == fact(view, "prediction_layers")[0] == "left out"
    with pytest.raises(CheckpointError, match=r"model\.audio\.encoder"):
        family_builder("inkling_text")(view_of(published() | others, CONFIG))


@pytest.mark.parametrize(("size", "rows"), [(VOCAB - 4, VOCAB - 4), (VOCAB, VOCAB), (VOCAB + 9, VOCAB)])
def test_padding_of_the_vocabulary_is_cut(size: int, rows: int) -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"unpadded_vocab_size": size, "vocab_size": VOCAB}))
    assert spec.vocab_size == rows
    for name in ("embed_tokens.weight", "lm_head.weight"):
        assert spec.parameters[name].pieces[0].rows == (None if rows == VOCAB else (0, rows))


@pytest.mark.parametrize("files", [shapes, published])
def test_the_head_alone_may_be_without_the_padding(files: Callable[[], Shapes]) -> None:
    head = "lm_head.weight" if files is shapes else "model.llm.unembed.weight"
    stated = CONFIG | {"unpadded_vocab_size": VOCAB - 4, "vocab_size": VOCAB}
    spec = build_spec(view_of(files() | {head: (VOCAB - 4, HIDDEN)}, stated))
    assert spec.vocab_size == VOCAB - 4
    assert spec.parameters["embed_tokens.weight"].pieces[0].rows == (0, VOCAB - 4)
    for rows, size in ((VOCAB - 3, VOCAB - 4), (VOCAB + 4, VOCAB + 4)):
        with pytest.raises(CheckpointError, match=rf"{head} has shape \[{rows}, "):
            build_spec(view_of(files() | {head: (rows, HIDDEN)}, stated | {"unpadded_vocab_size": size}))


def test_every_sixth_layer_is_full_where_nothing_is_stated() -> None:
    found = outer() | {"model.embed_tokens.embed_norm.weight": (HIDDEN,)}
    for number in range(7):
        for name, shape in shapes().items():
            if name.startswith("model.layers.0."):
                found[name.replace(".0.", f".{number}.", 1)] = shape
    spec = build_spec(view_of(found))
    assert [mixer.sliding_window is None for mixer in attentions(spec)] == [False] * 5 + [True, False]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shared_expert_sink": False}, "shared_expert_sink"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "softplus"}, "hidden_act"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"swa_head_dim": 4}, "swa_head_dim"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads"),
        ({"d_rel": 4}, "d_rel"),
        ({"rel_extent": 5}, "rel_extent"),
        ({"sliding_window_size": 7}, "sliding_window_size"),
        ({"layer_types": ["hybrid", "full_attention"]}, "full_attention"),
        ({"layer_types": ["hybrid"]}, "layer_types"),
        ({"mlp_layer_types": ["sparse", "sparse"]}, "mlp_layer_types"),
        ({"mlp_layer_types": None, "dense_mlp_idx": 2}, "dense_mlp_idx"),
        ({"mlp_layer_types": [], "dense_mlp_idx": 2}, "dense_mlp_idx"),
        ({"dense_intermediate_size": 24}, "intermediate_size"),
        ({"intermediate_size": 8}, "intermediate_size"),
        ({"n_routed_experts": 6}, "n_routed_experts"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"log_scaling_n_floor": 0}, "log_scaling_n_floor"),
        ({"embedding_multiplier": 2.0}, "embedding_multiplier"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        family_builder("inkling_text")(view_of(shapes(), CONFIG | change))


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 2), (2, 4)])
def test_query_heads_must_share_the_others_evenly(heads: int, kv_heads: int) -> None:
    base = "model.layers.1.self_attn."
    found = shapes() | attention(base, heads, kv_heads, 4, 7)
    stated = CONFIG | {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    with pytest.raises(CheckpointError, match=f"{heads} query heads can't share {kv_heads} key/value heads"):
        build_spec(view_of(found, stated))


@pytest.mark.parametrize("files", [shapes, published])
def test_the_embedding_is_no_head(files: Callable[[], Shapes]) -> None:
    found = {name: shape for name, shape in files().items() if "lm_head" not in name and "unembed" not in name}
    with pytest.raises(MissingTensor, match="the head is never the embedding"):
        build_spec(view_of(found, CONFIG))


@pytest.mark.parametrize(
    ("files", "name", "shape"),
    [
        (published, "model.llm.layers.1.mlp.experts.w13_weight", (6, 16, HIDDEN)),
        (published, "model.llm.layers.1.mlp.shared_experts.shared_w13_weight", (3, 16, HIDDEN)),
        (shapes, "model.layers.1.mlp.shared_experts.up_proj", (3, 8, HIDDEN)),
    ],
)
def test_stacks_hold_a_matrix_for_each_expert(files: Callable[[], Shapes], name: str, shape: tuple[int, ...]) -> None:
    """More of them than there are experts were left out in silence."""
    with pytest.raises(CheckpointError, match=f"{name} is a stack of {shape[0]} matrices"):
        build_spec(view_of(files() | {name: shape}, CONFIG))
