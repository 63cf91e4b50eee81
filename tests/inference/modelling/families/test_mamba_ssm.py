"""config.json of the package mamba_ssm: transformers' keys, and the same logits."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file, save_file

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.mamba_ssm import renamed_config
from inference.modelling.families.registry import config_keys
from tests.inference.modelling.families.headers import view_of
from tests.inference.modelling.harness import assert_matches_oracle, load_directory
from tests.inference.modelling.test_network_recurrent import SIZES, make_model, oracle_of

OUTER = {"d_model": 32, "n_layer": 3, "vocab_size": 91, "pad_vocab_size_multiple": 16, "rms_norm": True}
CASES = {
    "mamba": ("Mamba", {**SIZES, "state_size": 8, "time_step_rank": 4}, {"d_state": 8}),
    "mamba2": (
        "Mamba2",
        {**SIZES, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "tie_word_embeddings": True},
        {"layer": "Mamba2", "d_state": 16, "headdim": 8},
    ),
    "mamba2-groups-limits": (
        "Mamba2",
        {
            **SIZES, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "tie_word_embeddings": True,
            "time_step_limit": [0.05, 0.6],
        },
        {"layer": "Mamba2", "ngroups": 2, "dt_limit": [0.05, 0.6]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_packages_files_are_read(name, tmp_path):
    family, values, inner = CASES[name]
    model = make_model(family, values)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {key.replace(".embeddings.", ".embedding."): value for key, value in load_file(path).items()}
    tensors["lm_head.weight"] = tensors["backbone.embedding.weight"].clone()
    save_file(tensors, path)
    model_type = name.partition("-")[0]
    config = OUTER | {"ssm_cfg": inner, "tie_embeddings": True}
    network = load_directory(tmp_path, config, model_type)
    assert network.spec.vocab_size == 96 and network.spec.tie_word_embeddings
    assert_matches_oracle(network, oracle_of(model))


def test_groups_that_are_not_stated_are_one():
    assert renamed_config(view_of({}, OUTER)).config.get("n_groups") == 1


def test_transformers_keys_stay():
    view = view_of({}, {"hidden_size": 32, "d_model": 32, "vocab_size": 91})
    assert renamed_config(view) is view


@pytest.mark.parametrize(
    ("model_type", "change", "param"),
    [
        ("mamba2", {"attn_layer_idx": [9]}, "attn_layer_idx"),
        ("mamba2", {"d_intermediate": 64}, "d_intermediate"),
        ("mamba2", {"ssm_cfg": {"norm_before_gate": True}}, "ssm_cfg.norm_before_gate"),
        ("mamba2", {"ssm_cfg": {"layer": "Mamba1"}}, "ssm_cfg.layer"),
        ("mamba", {"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg.layer"),
        ("mamba", {"ssm_cfg": {"new": 1}}, "ssm_cfg.new"),
    ],
)
def test_variants_are_refused_by_name(model_type, change, param):
    with pytest.raises(UnsupportedArchitecture) as caught:
        check_config_keys(view_of({}, OUTER | change), model_type, config_keys(model_type))
    assert caught.value.param == param


def test_a_configuration_of_layers_that_is_no_object_is_refused():
    with pytest.raises(CorruptCheckpoint, match="ssm_cfg"):
        renamed_config(view_of({}, OUTER | {"ssm_cfg": [1]}))
