"""Mistral Large 4: who shares latents and choices, layers without positions, and both spellings of the files."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.config import Facts
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from models_registry.detection.architecture import detect_model_type
from tests.inference.modelling.families.headers import HIDDEN, Shapes, experts, mlp, norms, outer, view_of
from tests.inference.modelling.families.latent import LATENT, indexer

TYPE = "mistral_large4_text"
CONFIG: dict[str, Any] = {
    "model_type": TYPE, "num_attention_heads": 2, "num_experts_per_tok": 2, "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2, "n_shared_experts": 1, "no_rope_layers": [1, 0, 1, 0, 1],
    "kv_source_layers": [0, 1, 0, 1, 4], "indexer_types": ["full", "full", "shared", "full", "shared"],
    "max_position_embeddings": 64,
}  # fmt: skip
OWN_LATENTS, CHOOSING = (0, 1, 4), (0, 1, 3)


def attention(base: str, number: int, own: tuple[int, ...], choosing: tuple[int, ...]) -> Shapes:
    rotated = 0 if number % 2 else 2
    found: Shapes = {
        f"{base}q_proj.weight": (12, HIDDEN),
        f"{base}kv_b_proj.weight": (2 * (6 - rotated + 3), LATENT),
        f"{base}o_proj.weight": (HIDDEN, 6),
        f"{base}softmax_scaling.scale": (2,),
        f"{base}softmax_scaling.bias": (2,),
    }
    if number in own:
        found[f"{base}kv_a_proj_with_mqa.weight"] = (LATENT + rotated, HIDDEN)
        found[f"{base}kv_a_layernorm.weight"] = (LATENT,)
    if number in choosing:
        found |= indexer(base) | {f"{base}indexer.wq_b.weight": (24, HIDDEN)}
        found |= {f"{base}indexer.q_input_norm.{leaf}": (HIDDEN,) for leaf in ("weight", "bias")}
        found |= {f"{base}indexer.softmax_scaling.{leaf}": (3,) for leaf in ("scale", "bias")}
    return found


def shapes(own: tuple[int, ...] = OWN_LATENTS, choosing: tuple[int, ...] = CHOOSING) -> Shapes:
    found = outer() | {"model.rotary_emb.alpha": (1,)}
    for number in range(5):
        layer = f"model.layers.{number}."
        found |= norms(layer) | attention(f"{layer}self_attn.", number, own, choosing)
        if number == 0:
            found |= mlp(f"{layer}mlp.")
        else:
            found |= experts(f"{layer}mlp.experts.") | mlp(f"{layer}mlp.shared_experts.", 8)
            found[f"{layer}mlp.gate.weight"] = (4, HIDDEN)
    return found


PUBLISHED = (
    ("model.layers.", "layers."), ("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"),
    ("lm_head", "output"), ("model.rotary_emb", "lerope"), ("softmax_scaling.scale", "ssmax_scaling.s"),
    ("softmax_scaling.bias", "ssmax_scaling.b"), ("self_attn.", "attention."), ("mlp.gate.", "gate."),
    ("mlp.experts.", "experts."), ("mlp.shared_experts.", "shared_experts."), ("mlp.", "feed_forward."),
    ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3"), ("q_proj", "wq"), ("o_proj", "wo"),
    ("kv_a_proj_with_mqa", "wkv_a_with_mqa"), ("kv_b_proj", "wkv_b"), ("kv_a_layernorm", "kv_a_norm"),
    ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
)  # fmt: skip


def published(found: Shapes) -> Shapes:
    renamed: Shapes = {}
    for name, shape in found.items():
        for ours, theirs in PUBLISHED:
            name = name.replace(ours, theirs)
        renamed[name] = shape
    return renamed


def build(found: Shapes | None = None, **changes: Any) -> ModelSpec:
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return family_builder(config["model_type"])(view_of(shapes() if found is None else found, config))


def test_layers_share_latents_and_choices() -> None:
    mixers = [layer.token_mixer for layer in build().layers]
    assert [mixer.kv_source for mixer in mixers] == [None, None, 0, 1, None]
    assert [mixer.choice_source for mixer in mixers] == [None, None, 1, None, 3]
    assert [mixer.rope is None for mixer in mixers] == [False, True, False, True, False]
    assert [mixer.learned_frequencies for mixer in mixers] == [True, False, True, False, True]
    assert [[part.name for part in mixer.state()] for mixer in mixers] == [
        ["latent", "index_k"], ["latent", "index_k"], [], ["index_k"], ["latent"],
    ]  # fmt: skip
    assert {mixer.scale for mixer in mixers} == {6**-0.5}
    assert all(mixer.has_softmax_scale and mixer.kv_a_norm.eps == 1e-5 for mixer in mixers)
    chooser = mixers[0].indexer
    assert chooser.has_softmax_scale and chooser.hidden_norm.eps == 1e-6 and chooser.rope.interleaved
    assert mixers[1].indexer.rope is None


def test_a_run_begins_with_the_layer_whose_latents_are_read() -> None:
    spec = build()
    assert spec.state_numbers() == (0, 1, 0, 1, 4)
    assert spec.source_numbers() == (0, 1, 0, 1, 3)


def test_both_spellings_are_the_same_model() -> None:
    ours, theirs = build(), build(published(shapes()))
    assert theirs.layers == ours.layers
    assert "layers.2.experts.{e}.w1.weight" in str(theirs.parameters["layers.2.channel_mixer.experts.gate_up_proj"])
    names = {name for source in theirs.parameters.values() for name in source.tensor_names()}
    assert names == set(published(shapes()))
    beside = dict.fromkeys(("vision_encoder.ln_pre.weight", "patch_merger.merging_layer.weight",
                            "pre_mm_projector_norm.weight", "vision_language_adapter.w_in.weight"), (4,))  # fmt: skip
    whole = {"model_type": "mistral_large4", "text_config": CONFIG, "vision_config": {}}
    view = view_of(published(shapes()) | beside | {"mtp_dspark.layers.0.wq.weight": (4, 4)}, whole)
    assert family_builder("mistral_large4")(view).layers == ours.layers


def test_what_config_json_leaves_out_is_transformers_default() -> None:
    spec = build(max_position_embeddings=None)
    assert (spec.logits_softcap, spec.max_position_embeddings) == (30.0, 1 << 20)
    scaling = spec.layers[0].token_mixer.rope.scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_position_embeddings) == ("yarn", 2048.0, 512)
    assert (scaling.attention_factor, spec.layers[0].token_mixer.rope.theta) == (1.0, 1e4)
    moe = spec.layers[1].channel_mixer
    assert (moe.scoring, moe.normalise_top_k, moe.routed_scaling_factor, moe.num_expert_groups) == (
        "softmax", True, 1.0, 1,
    )  # fmt: skip
    assert build(rope_theta=500.0).layers[0].token_mixer.rope.theta == 500.0


def test_scores_have_yarns_magnitude_without_positions_too() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1.0}
    scales = {layer.token_mixer.scale for layer in build(rope_parameters=rope).layers}
    assert len(scales) == 1 and scales.pop() > 1.2 * 6**-0.5


def test_layers_without_positions_by_interval() -> None:
    with pytest.raises(CheckpointError):  # the tensors are of every other layer
        build(no_rope_layers=None, no_rope_layer_interval=3)
    assert build(no_rope_layers=None, no_rope_layer_interval=2).layers == build().layers


@pytest.mark.parametrize(
    "sources",
    [
        [0, 1, 0, 1],  # not one for each
        [0, 1, 2, 2, 4],  # of the other kind
        [0, 1, 3, 3, 4],  # later
        [0, 1, 0, 1, 2],  # shares itself
        [0, 1, -1, 1, 4],
    ],
)
def test_latents_that_no_layer_can_read_are_refused(sources: list[int]) -> None:
    with pytest.raises(CorruptCheckpoint, match="each of its 5 entries must be") as caught:
        build(kv_source_layers=sources)
    assert caught.value.param == "kv_source_layers"


def test_latents_that_a_newer_layer_replaces_are_refused() -> None:
    """transformers has one place for each kind: layer 4 would read what layer 2 put there, not layer 0."""
    config = CONFIG | {"no_rope_layers": [1] * 5, "kv_source_layers": [0, 0, 2, 2, 0]}
    with pytest.raises(CorruptCheckpoint, match="last earlier layer of its kind"):
        family_builder(TYPE)(view_of(shapes(), config))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("qk_rope_head_dim", 4, TensorShapeMismatch),
        ("qk_nope_head_dim", 6, TensorShapeMismatch),
        ("index_n_heads", 4, TensorShapeMismatch),
        ("kv_lora_rank", 7, TensorShapeMismatch),
        ("no_rope_layers", [1, 1, 1, 1, 1], CheckpointError),
        ("no_rope_layers", [1, 0], CorruptCheckpoint),
        ("indexer_types", ["shared"] * 5, CorruptCheckpoint),
        ("norm_topk_prob", False, CheckpointError),
        ("q_lora_rank", 8, CheckpointError),
        ("final_logit_softcapping", 0.0, CorruptCheckpoint),
    ],
)
def test_contradictions_are_refused(key: str, value: Any, error: type[CheckpointError]) -> None:
    with pytest.raises(error):
        build(**{key: value})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingTensor, match=r"layers\.3\.self_attn\.indexer"):
        build(shapes(choosing=(0, 1)))
    with pytest.raises(MissingTensor, match=r"layers\.4\.self_attn\.kv_a_proj_with_mqa"):
        build(shapes(own=(0, 1)))
    with pytest.raises(MissingTensor, match=r"rotary_emb\.alpha"):
        build({name: shape for name, shape in shapes().items() if not name.endswith("alpha")})


def test_the_names_tell_the_type() -> None:
    facts = Facts()
    view = view_of(shapes(), {})
    assert detect_model_type(view.tensors, "huggingface", view.config, facts) == (TYPE, True)


def test_experts_of_a_layer_in_two_namings_are_refused() -> None:
    """Their source has one name for all of them, and a load would look for tensors that aren't there."""
    mine = {name: shape for name, shape in shapes().items() if ".2.mlp.experts.1." not in name}
    theirs = published({name: shape for name, shape in shapes().items() if ".2.mlp.experts.1." in name})
    with pytest.raises(CorruptCheckpoint, match="are in two namings; the experts of a layer must be in one") as caught:
        build(mine | theirs)
    assert caught.value.param == "layers.2.experts.1.w1.weight"
    assert caught.value.message.startswith("model.layers.2.mlp.experts.0.gate_proj.weight and layers.2.experts.1.w1")
    assert caught.value.message.endswith("to model.layers.2.mlp.experts.1.gate_proj.weight.")


def test_other_tensors_may_be_in_two_namings() -> None:
    """transformers writes files whose names are of both."""
    ours = build()
    for part in (".experts.", "self_attn.", "layers.3.", "rotary_emb", "shared_experts"):
        mine = {name: shape for name, shape in shapes().items() if part not in name}
        theirs = published({name: shape for name, shape in shapes().items() if part in name})
        spec = build(mine | theirs)
        assert spec.layers == ours.layers
        names = {name for source in spec.parameters.values() for name in source.tensor_names()}
        assert names == set(mine) | set(theirs)
