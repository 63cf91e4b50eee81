"""What the recurrent families say of checkpoints that are incomplete, contradictory or beyond them; headers only."""

from __future__ import annotations

import math

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.registry import family_builder
from inference.modelling.specs.layers import Mamba1Spec, Mamba2Spec

HIDDEN, VOCAB = 16, 40


def mamba2_tensors(prefix: str, *, heads: int = 4, inner: int = 32, bc: int = 32, kernel: int = 4) -> dict:
    return {
        f"{prefix}in_proj.weight": (2 * inner + bc + heads, HIDDEN),
        f"{prefix}conv1d.weight": (inner + bc, 1, kernel),
        f"{prefix}conv1d.bias": (inner + bc,),
        f"{prefix}A_log": (heads,),
        f"{prefix}D": (heads,),
        f"{prefix}dt_bias": (heads,),
        f"{prefix}norm.weight": (inner,),
        f"{prefix}out_proj.weight": (HIDDEN, inner),
    }


def mamba2_checkpoint(**changes) -> dict:
    return {
        "backbone.embeddings.weight": (VOCAB, HIDDEN),
        "backbone.norm_f.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        "backbone.layers.0.norm.weight": (HIDDEN,),
        **mamba2_tensors("backbone.layers.0.mixer.", **changes),
    }


def mlp_tensors(prefix: str, width: int = 24) -> dict:
    return {
        f"{prefix}gate_proj.weight": (width, HIDDEN),
        f"{prefix}up_proj.weight": (width, HIDDEN),
        f"{prefix}down_proj.weight": (HIDDEN, width),
    }


def attention_tensors(prefix: str) -> dict:
    return {f"{prefix}{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}


def bamba_checkpoint() -> dict:
    tensors = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.final_layernorm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for number in range(2):
        base = f"model.layers.{number}."
        tensors[f"{base}input_layernorm.weight"] = (HIDDEN,)
        tensors[f"{base}pre_ff_layernorm.weight"] = (HIDDEN,)
        tensors |= mlp_tensors(f"{base}feed_forward.")
        tensors |= mamba2_tensors(f"{base}mamba.") if number == 0 else attention_tensors(f"{base}self_attn.")
    return tensors


def nemotron_checkpoint() -> dict:
    return {
        "backbone.embeddings.weight": (VOCAB, HIDDEN),
        "backbone.norm_f.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        "mtp.layers.0.norm.weight": (HIDDEN,),
        "backbone.layers.0.norm.weight": (HIDDEN,),
        **mamba2_tensors("backbone.layers.0.mixer."),
        "backbone.layers.1.norm.weight": (HIDDEN,),
        "backbone.layers.1.mixer.gate.weight": (4, HIDDEN),
        "backbone.layers.1.mixer.gate.e_score_correction_bias": (4,),
        **{f"backbone.layers.1.mixer.experts.{e}.up_proj.weight": (8, HIDDEN) for e in range(4)},
        **{f"backbone.layers.1.mixer.experts.{e}.down_proj.weight": (HIDDEN, 8) for e in range(4)},
        "backbone.layers.1.mixer.shared_experts.up_proj.weight": (12, HIDDEN),
        "backbone.layers.1.mixer.shared_experts.down_proj.weight": (HIDDEN, 12),
    }


def inspect(model_type: str, tensors: dict, **config):
    """(spec, facts) of a checkpoint that exists as headers only."""
    table = TensorTable({name: TensorInfo("BF16", shape) for name, shape in tensors.items()})
    view = CheckpointView(CheckpointConfig({"model_type": model_type, **config}), table, Facts())
    return family_builder(model_type)(view), view.facts


BAMBA = {"num_attention_heads": 2, "mamba_n_groups": 2, "mamba_d_state": 8, "attn_layer_indices": [1]}


def test_bamba_without_complaints():
    spec, facts = inspect("bamba", bamba_checkpoint(), **BAMBA)
    assert [layer.kind for layer in spec.layers] == ["mamba2+mlp", "attention+mlp"]
    assert spec.layers[1].token_mixer.rope.rotary_dim == 4
    assert not facts.warnings


def test_layer_kinds_that_contradict_the_config_are_refused():
    with pytest.raises(TensorShapeMismatch, match=r"calls layer 0 attention \(attn_layer_indices\).*mamba's"):
        inspect("bamba", bamba_checkpoint(), **{**BAMBA, "attn_layer_indices": [0]})


def test_groups_follow_from_the_state_size_when_config_has_no_groups():
    spec, _ = inspect("mamba2", mamba2_checkpoint(bc=32), state_size=4)
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, Mamba2Spec)
    assert (mixer.num_groups, mixer.state_size, mixer.norm_group_size) == (4, 4, 8)


@pytest.mark.parametrize(("key", "stated", "found"), [("conv_kernel", 4, 3), ("num_heads", 8, 4), ("head_dim", 9, 8)])
def test_sizes_that_contradict_config_are_refused_with_both(key, stated, found):
    tensors = mamba2_checkpoint(kernel=3)
    mixer = inspect("mamba2", tensors, n_groups=1, conv_kernel=3, num_heads=4)[0].layers[0].token_mixer
    assert (mixer.conv_kernel, mixer.num_heads, mixer.head_dim) == (3, 4, 8)
    with pytest.raises(TensorShapeMismatch, match=f"says {key} {stated}, but the tensors have {found}"):
        inspect("mamba2", tensors, n_groups=1, **{key: stated})


@pytest.mark.parametrize(
    ("changes", "config", "names"),
    [
        ({"bc": 30}, {"n_groups": 2}, "conv1d.weight"),
        ({}, {"n_groups": 2, "state_size": 9}, "state_size"),
        ({"heads": 4}, {"n_groups": 8}, "n_groups"),
        ({"heads": 5}, {}, "out_proj.weight"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(changes, config, names):
    with pytest.raises(TensorShapeMismatch, match=names):
        inspect("mamba2", mamba2_checkpoint(**changes), **config)


@pytest.mark.parametrize("shape", [(64, 4), (64, 2, 4), (64, 1, 4096)])
def test_odd_convolutions_are_refused(shape):
    tensors = {**mamba2_checkpoint(), "backbone.layers.0.mixer.conv1d.weight": shape}
    with pytest.raises(CheckpointError, match=r"conv1d\.weight has shape"):
        inspect("mamba2", tensors, n_groups=1)


@pytest.mark.parametrize(
    "limits",
    [
        [0.5, 0.1], [-1.0, 1.0], [0.0], "0,1", [math.nan, 1.0], [0.0, math.nan], [math.inf, math.inf], [0, True],
        [0, 10**400],
    ],
)  # fmt: skip
def test_bad_time_step_limits_are_refused(limits):
    with pytest.raises(CorruptCheckpoint, match="time_step_limit"):
        inspect("mamba2", mamba2_checkpoint(), n_groups=1, time_step_limit=limits)


def test_a_layer_of_no_known_kind_is_named():
    tensors = {name: shape for name, shape in bamba_checkpoint().items() if "layers.1.self_attn" not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        inspect("bamba", tensors, **BAMBA)


def test_nemotron_reads_pattern_shared_expert_and_leaves_prediction_modules_out():
    spec, facts = inspect(
        "nemotron_h", nemotron_checkpoint(), hybrid_override_pattern="ME", num_experts_per_tok=2, n_groups=2
    )
    assert [layer.kind for layer in spec.layers] == ["mamba2", "moe"]
    moe = spec.layers[1].channel_mixer
    assert (moe.num_experts, moe.shared_intermediate_size, moe.correction_bias, moe.gated) == (4, 12, True, False)
    assert not facts.warnings


def test_nemotron_refuses_an_unknown_letter():
    with pytest.raises(UnsupportedArchitecture, match="'X'"):
        inspect("nemotron_h", nemotron_checkpoint(), hybrid_override_pattern="MX", n_groups=2)


def test_unknown_layer_types_are_refused():
    tensors = {name.replace("final_layernorm", "norm"): shape for name, shape in bamba_checkpoint().items()}
    tensors = {name.replace("pre_ff_layernorm", "post_attention_layernorm"): s for name, s in tensors.items()}
    tensors = {name: shape for name, shape in tensors.items() if "feed_forward" not in name}
    for number in range(2):
        tensors[f"model.layers.{number}.shared_mlp.input_linear.weight"] = (48, HIDDEN)
        tensors[f"model.layers.{number}.shared_mlp.output_linear.weight"] = (HIDDEN, 24)
    config = {key: value for key, value in BAMBA.items() if key != "attn_layer_indices"}
    config["layer_types"] = ["mamba", "attention"]
    spec, facts = inspect("granitemoehybrid", tensors, **config)
    assert [layer.kind for layer in spec.layers] == ["mamba2+mlp", "attention+mlp"]
    assert not facts.warnings
    with pytest.raises(UnsupportedArchitecture, match="'hyena'"):
        inspect("granitemoehybrid", tensors, **{**config, "layer_types": ["hyena", "attention"]})


def test_mamba_without_config_takes_everything_from_shapes():
    inner, size, rank = 24, 4, 3
    base = "backbone.layers.0.mixer."
    tensors = {
        "backbone.embeddings.weight": (VOCAB, HIDDEN),
        "backbone.norm_f.weight": (HIDDEN,),
        "backbone.layers.0.norm.weight": (HIDDEN,),
        f"{base}in_proj.weight": (2 * inner, HIDDEN),
        f"{base}conv1d.weight": (inner, 1, 4),
        f"{base}conv1d.bias": (inner,),
        f"{base}x_proj.weight": (rank + 2 * size, inner),
        f"{base}dt_proj.weight": (inner, rank),
        f"{base}dt_proj.bias": (inner,),
        f"{base}A_log": (inner, size),
        f"{base}D": (inner,),
        f"{base}out_proj.weight": (HIDDEN, inner),
    }
    spec, facts = inspect("mamba", tensors)
    assert spec.tie_word_embeddings
    assert spec.layers[0].token_mixer == Mamba1Spec(inner, size, 4, rank)
    assert not facts.warnings
    for key, stated in (("intermediate_size", 25), ("state_size", 5), ("time_step_rank", 4)):
        with pytest.raises(TensorShapeMismatch, match=f"says {key} {stated}"):
            inspect("mamba", tensors, **{key: stated})
    assert inspect("mamba", tensors, time_step_rank="auto", intermediate_size=inner)[0] == spec
    truncated = {**tensors, f"{base}x_proj.weight": (rank + size, inner)}
    with pytest.raises(TensorShapeMismatch, match=r"x_proj\.weight"):
        inspect("mamba", truncated)
