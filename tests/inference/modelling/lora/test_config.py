"""adapter_config.json: what is read, what is ignored, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.lora.config import LoraConfig


def test_defaults_are_pefts() -> None:
    config = LoraConfig.from_dict({})
    assert (config.rank, config.alpha, config.bias, config.is_dora, config.target_modules) == (
        8,
        8.0,
        "none",
        False,
        (),
    )
    assert config.scale_of("model.layers.0.self_attn.q_proj", 8) == 1.0


def test_patterns_match_the_end_of_a_name_and_the_first_one_counts() -> None:
    config = LoraConfig.from_dict(
        {
            "r": 4,
            "lora_alpha": 8,
            "rank_pattern": {"q_proj": 2, "layers.1.self_attn.q_proj": 3},
            "alpha_pattern": {r"layers\.1\..*": 32},
            "use_rslora": True,
        }
    )
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 2
    assert config.rank_of("model.layers.1.self_attn.xq_proj") == 4
    assert config.scale_of("model.layers.1.mlp.up_proj", 4) == 16.0
    assert config.scale_of("model.layers.0.mlp.up_proj", 4) == 4.0


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'; only LORA and XLORA can be served: merge the adapter"),
        ({"peft_type": "XLORA"}, "that of an X-LoRA.*; merge one of the adapters in it"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"use_qalora": True}, "use_qalora"),
        ({"a_new_key": {"scale": 2}}, "a_new_key"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
    ],
)
def test_keys_that_change_the_arithmetic_are_refused_by_name(members: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedFormat, match=words):
        LoraConfig.from_dict(members)


def test_a_bases_name_is_one_line_without_control_characters() -> None:
    assert LoraConfig.from_dict({"base_model_name_or_path": "maker/\nba\x1b[31mse"}).base_model == "maker/ba[31mse"
    assert LoraConfig.from_dict({"base_model_name_or_path": None}).base_model == ""


def test_keys_of_training_are_ignored() -> None:
    members = {"lora_dropout": 0.1, "a_new_key": None, "layer_replication": [], "init_lora_weights": "gaussian"}
    LoraConfig.from_dict(members | {"task_type": "CAUSAL_LM", "eva_config": {"rho": 2.0}, "use_qalora": False})


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"r": 0}, "r = '0'; it must be a rank from 1 to 256"),
        ({"r": 512}, "rank from 1 to 256"),
        ({"r": True}, "rank from 1 to 256"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"use_dora": "yes"}, "use_dora"),
        ({"bias": "some"}, "none, all or lora_only"),
        ({"modules_to_save": [1]}, "modules_to_save"),
        ({"target_modules": {"q": 1}}, "target_modules"),
        ({"rank_pattern": {"(": 4}}, "valid regular expression"),
        ({"rank_pattern": {"(a+)+$": 4}}, "quantifiers"),
        ({"alpha_pattern": {"a*b*c*": 4}}, "quantifiers"),
        ({"alpha_pattern": {"(a|a)" * 40: 4}}, "quantifiers"),
        ({"alpha_pattern": {r"\\*" * 40: 4}}, "quantifiers"),
        ({"alpha_pattern": {"a" * 301: 4}}, "quantifiers"),
        ({"alpha_pattern": [1]}, "an object"),
    ],
)
def test_members_of_wrong_type_or_range_are_refused(members: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        LoraConfig.from_dict(members)
