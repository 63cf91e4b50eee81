"""Every HuggingFace family with recurrent layers against transformers: logits within 1e-4 in float32.

A tiny random model is built from a transformers config, saved, and read back through inspection's route
(names and shapes to a spec, spec to a network). All parameters are drawn anew, those too that
transformers starts at one or zero, so that none can be left out unnoticed.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2}
HYBRID_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
NEMOTRON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "head_dim": 8,
    **ATTENTION,
    "intermediate_size": 48,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "time_step_min": 1e-9,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}
GRANITE = {
    **SIZES,
    **ATTENTION,
    **HYBRID_MAMBA,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "layer_types": ["mamba", "attention", "mamba"],
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.5,
}

CASES = {
    "mamba": ("Mamba", {**SIZES, "state_size": 8, "time_step_rank": 4}),
    "mamba-biases-untied-kernel3": (
        "Mamba",
        {
            **SIZES, "state_size": 4, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False,
            "tie_word_embeddings": False, "hidden_act": "gelu",
        },
    ),
    "falcon_mamba": ("FalconMamba", {**SIZES, "state_size": 8, "time_step_rank": 4, "mixer_rms_eps": 1e-3}),
    "mamba2": (
        "Mamba2",
        {**SIZES, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    ),
    "mamba2-one-group-limits-bias-tied": (
        "Mamba2",
        {
            **SIZES, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 256,
            "use_bias": True, "use_conv_bias": False, "time_step_limit": [0.05, 0.6], "tie_word_embeddings": True,
        },
    ),
    "bamba": ("Bamba", {**SIZES, **ATTENTION, **HYBRID_MAMBA, "intermediate_size": 48, "attn_layer_indices": [1]}),
    "bamba-biases-no-attention": (
        "Bamba",
        {
            **SIZES, **ATTENTION, **HYBRID_MAMBA, "intermediate_size": 48, "mamba_n_groups": 1,
            "mamba_proj_bias": True, "mlp_bias": True, "time_step_limit": [0.0, 0.4],
        },
    ),
    "granitemoehybrid-moe": ("GraniteMoeHybrid", {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3}),
    "granitemoehybrid-dense-rope": (
        "GraniteMoeHybrid",
        {**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope", "attention_bias": True,
         "tie_word_embeddings": True},
    ),
    "nemotron_h-dense": ("NemotronH", {**NEMOTRON, "hybrid_override_pattern": "M-M*-"}),
    "nemotron_h-moe": (
        "NemotronH",
        {
            **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "use_bias": True, "attention_bias": True,
        },
    ),
    "nemotron_h-latent": (
        "NemotronH",
        {
            **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention"], "moe_latent_size": 16,
            "n_group": 1, "topk_group": 1, "routed_scaling_factor": 5.0,
        },
    ),
    "jamba": (
        "Jamba",
        {
            **SIZES, **ATTENTION, "num_hidden_layers": 4, "intermediate_size": 48, "num_experts": 4,
            "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
        },
    ),
    "jamba-one-expert-biases": (
        "Jamba",
        {
            **SIZES, **ATTENTION, "intermediate_size": 48, "num_experts": 1, "num_experts_per_tok": 1,
            "attn_layer_period": 2, "attn_layer_offset": 0, "mamba_d_state": 8, "mamba_proj_bias": True,
            "mamba_conv_bias": False, "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip


CONVOLUTIONS = ("conv1d.weight", "static_weight")


def make_model(family: str, values: dict, seed: int = 0) -> torch.nn.Module:
    """A transformers model with every parameter and stored buffer drawn from a fixed seed."""
    torch.manual_seed(seed)
    if family == "Glm5Next":
        model = glm_model(values).eval()
    else:
        config = getattr(transformers, f"{family}Config")(**values)
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    stored = model.state_dict().keys()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if name not in stored or name.endswith(("slope_rate", "_decay")):
                continue  # a constant of the config
            if name.endswith("A_log"):
                parameter.uniform_(-1.5, 2.0)
            elif name.endswith(("dt_bias", "dt_proj.bias", "dt_proj_bias")):
                parameter.uniform_(-4.0, 1.0)
            elif name.endswith(("time_decay", "time_first")):
                parameter.uniform_(-4.0, 1.5)
            elif "time_mix" in name:
                parameter.uniform_(0.0, 1.0)
            elif name.endswith(".query"):
                parameter.normal_(0.0, 1.0)
            elif name.endswith(("D", "l2_clip.scale")) or "norm" in name or (".ln" in name and name.endswith("weight")):
                parameter.uniform_(0.3, 1.7)
            elif name.endswith("e_score_correction_bias"):
                parameter.uniform_(-0.3, 0.3)
            elif name.endswith(("_hc.base", "_hc.scale")):
                parameter.uniform_(-0.7, 0.7)
            elif name.endswith("balancing_biases"):
                parameter.uniform_(-0.1, 0.1)
            elif "router_mlp." in name and parameter.dim() >= 2:
                parameter.normal_(0.0, 2.5 / math.sqrt(parameter.shape[-1]))  # else all rows choose the same
            elif name.endswith(("hidden_states_bias", "residual_bias")):
                parameter.normal_(0.0, 0.03)  # likewise
            elif parameter.dim() == 1 and name.endswith("_scale"):
                parameter.uniform_(0.3, 1.7)
            elif parameter.dim() >= 2:
                parameter.normal_(0.0, 0.7 / math.sqrt(parameter.shape[-1]) if not name.endswith(CONVOLUTIONS) else 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
    return model


def glm_model(text: dict) -> torch.nn.Module:
    """GLM-5.3 with a small part that sees; transformers has no class of the text model with a head."""
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32, "patch_size": 4,
        "projection_intermediate_size": 16,
    }  # fmt: skip
    config = transformers.Glm5NextConfig(text_config=text, vision_config=vision, attn_implementation="eager")
    return transformers.Glm5NextForConditionalGeneration(config)


def oracle_of(model: torch.nn.Module):
    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    return oracle


def rewrite_config(directory, **changes) -> dict:
    """config.json with some keys replaced (None: removed)."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config.pop(key, None)
        if value is not None:
            config[key] = value
    return config


@pytest.mark.parametrize("name", CASES)
def test_matches_transformers(name, tmp_path):
    family, values = CASES[name]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


@pytest.mark.parametrize("name", ["granitemoehybrid-moe", "nemotron_h-moe", "nemotron_h-latent", "jamba"])
def test_reads_experts_stacked_on_disk(name, tmp_path):
    family, values = CASES[name]
    model = make_model(family, values)
    model.save_pretrained(tmp_path, save_original_format=False)
    tensors = read_view(tmp_path).tensors
    assert any(key.endswith("experts.down_proj") for key in tensors)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


def test_bamba_in_the_hubs_naming(tmp_path):
    family, values = CASES["bamba"]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    config = rewrite_config(
        tmp_path, rope_parameters=None, rope_theta=10000.0, partial_rotary_factor=None, layers_block_type=None
    )
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))


def test_granite_in_the_hubs_naming(tmp_path):
    family, values = CASES["granitemoehybrid-dense-rope"]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    config = rewrite_config(
        tmp_path,
        layer_types=["mamba", "attention", "mamba"],
        rope_parameters=None,
        rope_theta=10000.0,
        time_step_limit=[0.0, math.inf],
    )
    view = read_view(tmp_path, config)
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))
    assert not view.facts.warnings


def test_nemotron_in_the_hubs_naming(tmp_path):
    family, values = CASES["nemotron_h-dense"]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    config = rewrite_config(tmp_path, layers_block_type=None, hybrid_override_pattern="M-M*-", num_hidden_layers=5)
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))


def test_nemotron_under_both_prefixes(tmp_path):
    family, values = CASES["nemotron_h-dense"]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    old, new = (
        ("backbone.", "model.") if any(key.startswith("backbone.") for key in tensors) else ("model.", "backbone.")
    )
    save_file({key.replace(old, new): value.clone() for key, value in tensors.items()}, path)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


def test_sizes_come_from_shapes_without_config(tmp_path):
    family, values = CASES["mamba2-one-group-limits-bias-tied"]
    model = make_model(family, {**values, "time_step_limit": [0.0, math.inf], "n_groups": 1})
    model.save_pretrained(tmp_path)
    network = load_directory(tmp_path, {"n_groups": 1}, model_type="mamba2")
    assert_matches_oracle(network, oracle_of(model))


@pytest.mark.parametrize("spelling", [[0.0, math.inf], [0.0, {"__float__": "Infinity"}], None])
def test_time_step_limit_spellings(spelling, tmp_path):
    family, values = CASES["bamba"]
    make_model(family, values).save_pretrained(tmp_path)
    network = load_directory(tmp_path, rewrite_config(tmp_path, time_step_limit=spelling))
    mixer = network.spec.layers[0].token_mixer
    assert (mixer.dt_min, mixer.dt_max) == (0.0, math.inf)
