"""Configs: what isn't a plain copy of a key; that whole files compute the same is in test_architectures.py."""

from __future__ import annotations

from functools import partial

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf import configs, dense_configs
from tests.inference.modelling.gguf.test_config_parts import HEADS, make_metadata
from tests.inference.modelling.gguf.writer import value


@pytest.fixture
def meta(tmp_path):
    return partial(make_metadata, tmp_path)


def test_llama_with_experts_is_mixtral(meta):
    found = configs.llama(meta("llama", HEADS | {"expert_count": 8, "expert_used_count": 2}))
    assert (found["model_type"], found["num_local_experts"], found["num_experts_per_tok"]) == ("mixtral", 8, 2)
    assert configs.llama(meta("llama", HEADS))["model_type"] == "llama"


def test_gemmas_largest_model_has_another_scale(meta):
    keys = {"embedding_length": 4608, "attention.head_count": 32, "attention.key_length": 128}
    assert configs.gemma2(meta("gemma2", keys | {"block_count": 46}))["query_pre_attn_scalar"] == 144
    assert configs.gemma2(meta("gemma2", keys | {"block_count": 42}))["query_pre_attn_scalar"] == 128


def test_deepseek_is_told_by_its_scores(meta):
    second = configs.deepseek2(meta("deepseek2", {"block_count": 2, "expert_group_count": 8}))
    assert (second["model_type"], second["topk_method"]) == ("deepseek_v2", "group_limited_greedy")
    third = configs.deepseek2(
        meta("deepseek2", {"block_count": 2, "expert_gating_func": 2, "expert_weights_norm": True})
    )
    assert (third["model_type"], third["scoring_func"], third["norm_topk_prob"]) == ("deepseek_v3", "sigmoid", True)
    with pytest.raises(UnsupportedArchitecture, match=r"expert_gating_func is 3"):
        configs.deepseek2(meta("deepseek2", {"block_count": 2, "expert_gating_func": 3}))


@pytest.mark.parametrize("arch", ["deepseek2", "glm-dsa"])
def test_latent_attention_whose_queries_grow_is_refused(arch, meta):
    keys = {"block_count": 2, "attention.temperature_scale": 0.1}
    with pytest.raises(UnsupportedArchitecture, match=rf"{arch}\.attention\.temperature_scale says that queries grow"):
        configs.deepseek2(meta(arch, keys))


def test_yarn_of_deepseek_states_its_magnitude(meta):
    keys = {
        "block_count": 2, "rope.dimension_count": 64, "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.0707,
    }  # fmt: skip
    found = configs.deepseek2(meta("deepseek2", keys))["rope_scaling"]
    assert (found["mscale"], found["mscale_all_dim"], found["factor"]) == (0.707, 0.707, 40.0)


def test_granite_has_positions_if_it_says_so(meta):
    assert configs.granite_hybrid(meta("granitehybrid", HEADS))["position_embedding_type"] == "nope"
    rotary = HEADS | {"rope.scaling.finetuned": True}
    assert configs.granite_hybrid(meta("granitehybrid", rotary))["position_embedding_type"] == "rope"
    assert dense_configs.granite(meta("granite", HEADS))["attention_multiplier"] == 128**-0.5


def test_heads_are_the_most_of_any_layer(meta):
    keys = {"block_count": 3, "attention.head_count": 8, "attention.head_count_kv": value([0, 4, 0], "u32")}
    found = configs.jamba(meta("jamba", keys))
    assert (found["num_attention_heads"], found["num_key_value_heads"]) == (8, 4)
