"""Every key of every family: changing it changes the spec, is refused by name, or changes nothing in transformers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from inference.errors import CheckpointError, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.config_key_tables import ROPE_MEMBERS
from inference.modelling.families.config_keys import (
    Biases,
    Harmless,
    Members,
    Only,
    Used,
    _has_biases,
    check_config_keys,
)
from inference.modelling.families.dots3 import SIZES
from inference.modelling.families.registry import FAMILIES, config_keys, family_builder
from inference.modelling.families.wrapped import ALIKE, OMNI, TEXT_TYPES
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import llama, view_of
from tests.inference.modelling.families.published_configs import PUBLISHED as PUBLISHED_EARLIER
from tests.inference.modelling.families.published_large import PUBLISHED_LARGE
from tests.inference.modelling.families.published_once_refused import ONCE_REFUSED, ONCE_REFUSED_AROUND
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.huggingface import read_config
from tests.inference.modelling.test_network_attention import CASES as ATTENTION_CASES
from tests.inference.modelling.test_network_dense import CASES as DENSE_CASES
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_kimi import CASES as KIMI_CASES
from tests.inference.modelling.test_network_large import AROUND as LARGE_AROUND
from tests.inference.modelling.test_network_large import CASES as LARGE_CASES
from tests.inference.modelling.test_network_linear import CASES as LINEAR_CASES
from tests.inference.modelling.test_network_recurrent import CASES as RECURRENT_CASES
from tests.inference.modelling.test_network_recurrent import glm_model
from tests.models_registry.detection.builders import EXAMPLES

PUBLISHED = PUBLISHED_EARLIER | PUBLISHED_LARGE | ONCE_REFUSED
TYPES = {
    "llama": "llama-mha-bias", "mistral": "mistral-window-shorter-than-prompt", "qwen2": "qwen2-window-in-last-layers",
    "qwen3": "qwen3-window-by-type", "qwen2_moe": "qwen2_moe", "qwen3_moe": "qwen3_moe",
    "mixtral": "mixtral-window", "phi3": "phi3-longrope-short", "gemma2": "gemma2-strong-caps",
    "gemma3_text": "gemma3_text-stretched-capped",
    "deepseek_v2": "deepseek_v2-q-lora-groups-yarn", "deepseek_v3": "deepseek_v3-bias-yarn",
    "kimi_k2": "deepseek_v3-bias-yarn", "mimo": "qwen2-window-in-last-layers",
    "mamba": "mamba-biases-untied-kernel3", "falcon_mamba": "falcon_mamba",
    "mamba2": "mamba2-one-group-limits-bias-tied", "bamba": "bamba", "granitemoehybrid": "granitemoehybrid-moe",
    "nemotron_h": "nemotron_h-moe", "jamba": "jamba", "falcon_h1": "falcon_h1", "olmo_hybrid": "olmo_hybrid",
    "kimi_linear": "kimi_linear-groups-q-lora-biases", "bailing_hybrid": "bailing_hybrid",
    "minimax": "minimax", "rwkv": "rwkv", "zamba": "zamba", "zamba2": "zamba2", "zaya": "zaya",
    "recurrent_gemma": "recurrent_gemma", "xlstm": "xlstm",
    "lfm2": "lfm2", "lfm2_moe": "lfm2_moe", "lfm3": "lfm3", "inkling_text": "inkling", "inkling2_text": "inkling2",
    "glm5_next_text": "glm5_next",
    "qwen3_next": "qwen3_next", "qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen4_exp_text": "qwen4_exp",
    **{model_type: model_type for model_type, _ in DENSE_CASES.values()}, "cohere": "cohere-qk-norm-biases-untied",
    **{model_type: model_type for model_type, _ in LARGE_CASES.values()},
}  # fmt: skip
"""``model_type`` to a case of the tests of logits."""
CONFIGS = {"Glm5Next": "Glm5NextText"}
"""Start of the names of text models' configs, where it isn't that of the whole model."""
REMOTE = {"oxidizr", "phi3_v", "kimi_vl", "internvl_chat", "llava_llama", "llava_mistral", "llava_qwen"}
"""Types that transformers reads by remote code, if at all."""
ELSEWHERE = {"mllama", "deepseek_ocr2", "ernie4_5_vl_moe", *OMNI}
"""Types whose keys tests of their own or test_wrapped.py look at."""
AROUND = {
    "qwen4_exp": "qwen4_exp_text", "kimi_k25": "deepseek_v3", "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe", "smolvlm": "llama", "idefics3": "llama",
    "lfm2_vl": "lfm2", "lfm3_vl": "lfm3", "inkling_mm_model": "inkling_text", "inkling2": "inkling2_text",
    "glm5_next": "glm5_next_text", "mistral_large4": "mistral_large4_text", "dots3_note": "dots3_note_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "gemma3": "gemma3_text",
    **{outer: text for outer, (text, _) in LARGE_AROUND.items()}, "gemma3n": "gemma3n_text",
    **{outer: ALIKE.get(text, text) for outer, text in TEXT_TYPES.items() if outer not in REMOTE | ELSEWHERE},
}  # fmt: skip
"""Types of models that see pictures, to that of their text model."""
SETTINGS: dict[str, dict[str, Any]] = {
    "gemma3n_text": {"rope_parameters": None, "rope_theta": 5e5, "rope_local_base_freq": 300.0},
    "gemma3_text": {
        "layer_types": None, "sliding_window_pattern": 2, "rope_parameters": None, "rope_theta": 5e5,
        "rope_local_base_freq": 300.0,
    },
    "smollm3": {
        "use_sliding_window": True, "sliding_window": 6, "layer_types": None,
    },
    "cohere2_moe": {"expert_selection_fn": "sigmoid"},
    "dots3_note_text": {"swa_num_attention_heads": 2, "layer_types": None},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "qwen2_moe": {
        "use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 6},
}  # fmt: skip
"""Changes of a config, so that more of its keys matter."""

OUTSIDE_THE_SPEC = {
    "model_type", "architectures", "quantization_config", "compression_config", "tokenizer_vocab", "bos_token_id",
    "eos_token_id",
}  # fmt: skip
"""Keys that the detection and the tokenisers read, each tested there."""
NO_ROPE_PARAMETERS = {"rope_parameters": None, "rope_scaling": None}
PREPARED: dict[str, dict[str, Any]] = {
    "rope_theta": NO_ROPE_PARAMETERS,
    "partial_rotary_factor": {**NO_ROPE_PARAMETERS, "rope_theta": 1e4},
    "rotary_percent": {**NO_ROPE_PARAMETERS, "rope_theta": 1e4},
    "original_max_position_embeddings": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "max_window_layers": {"layer_types": None},
    "attn_layer_period": {"layers_block_type": None},
    "attn_layer_offset": {"layers_block_type": None},
    "num_layers": {"num_hidden_layers": None},
    "n_layer": {"num_hidden_layers": None, "num_layers": None},
    "max_seq_len": {"max_position_embeddings": None},
    "num_attention_heads": {"num_attention_heads_per_layer": None},
    "num_heads": {"num_attention_heads": None, "num_attention_heads_per_layer": None},
    "tie_embeddings": {"tie_word_embeddings": None},
    "num_kv_heads": {"num_key_value_heads": None},
    "num_experts": {"num_local_experts": None, "n_routed_experts": None},
    "num_local_experts": {"num_experts": None, "n_routed_experts": None},
    "num_mtp_layers": {"num_nextn_predict_layers": None, "num_hidden_layers": 2},
    "num_nextn_predict_layers": {"num_hidden_layers": 2, "num_nextn_predict_layers": 1},
    "d_inner": {"intermediate_size": None},
    "rms_norm_eps": {"layer_norm_epsilon": None},
    "hybrid_override_pattern": {"layers_block_type": None},
    "layer_types": {"layers_block_type": None},
    "full_attention_interval": {"layer_types": None},
    "sliding_window_pattern": {"layer_types": None},
    "_sliding_window_pattern": {"layer_types": None, "sliding_window_pattern": None},
    "no_rope_layer_interval": {"no_rope_layers": None},
    "experts_per_token": {"num_experts_per_tok": None},
    "first_k_dense_replace": {"mlp_layer_types": None},
    "moe_layer_freq": {"mlp_layer_types": None, "first_k_dense_replace": 1},
    "layers_block_type": {"layer_types": None},
    "global_head_dim": {"per_layer_config": None},
    "hybrid_layer_pattern": {"layer_types": None},
    "layernorm_epsilon": {"rms_norm_eps": None},
    "mamba_dt_limit": {"time_step_limit": None},
    "num_global_key_value_heads": {"per_layer_config": None},
    "sliding_window": {"sliding_window_size": None},
    "sconv_kernel_size": {"conv_kernel_size": None},
    "local_layer_ids": {"layer_types": None},
    "sliding_window_size": {"sliding_window": None},
    "moe_shared_expert_intermediate_size": {"shared_experts_intermediate_size": None},
    "swa_rope_theta": NO_ROPE_PARAMETERS,
    **{f"swa_{key}": {"per_layer_config": None} for key in SIZES},
    "dense_mlp_idx": {"mlp_layer_types": None},
    "num_hash_layers": {"mlp_layer_types": None},
    "compress_ratios": {"layer_types": None},
    "compress_rope_theta": {"rope_parameters": None},
    "model_max_length": {"max_position_embeddings": None},
    "layer_norm_eps": {"rms_norm_eps": None},
    "num_attention_groups": {"num_key_value_heads": None},
    "moe_num_experts": {"num_experts": None, "n_routed_experts": None},
    "n_routed_experts": {"num_experts": None},
    "moe_top_k": {"num_experts_per_tok": None},
    "share_expert_dims": {"share_expert_dim": None},
    "moe_layers_enum": {"mlp_layer_types": None},
    "partial_rotary_factors": {"rope_parameters": None},
    "num_sliding_attention_heads": {"per_layer_config": None},
}
"""What has to be absent, or present, for a key to matter: another spelling wins over it."""


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint: transformers' model, config.json, and the tensor table."""

    model: torch.nn.Module
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]


def model_of(config: PretrainedConfig) -> torch.nn.Module:
    """A new model with a head, in float32."""
    if config.model_type == "glm5_next_text":
        return glm_model(config.to_dict()).float().eval()
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    made: dict[str, Tiny] = {}

    def make(model_type: str) -> Tiny:
        if model_type not in made:
            case = TYPES[model_type]
            if case in ATTENTION_CASES:
                config = copy.deepcopy(ATTENTION_CASES[case])
            elif case in DENSE_CASES | LARGE_CASES:
                config = tiny_config(model_type, (DENSE_CASES | LARGE_CASES)[case][1])
            else:
                family, values = (RECURRENT_CASES | LINEAR_CASES | KIMI_CASES)[case]
                config = getattr(transformers, f"{CONFIGS.get(family, family)}Config")(**values)
            torch.manual_seed(0)
            model = model_of(config)
            directory = tmp_path_factory.mktemp(model_type)
            model.save_pretrained(directory)
            saved = read_config(directory)
            saved = saved.get("text_config", saved) | SETTINGS.get(model_type, {})
            tensors = {name: info for name, info in read_view(directory).tensors.items() if "visual" not in name}
            made[model_type] = Tiny(model, saved, tensors)
        return made[model_type]

    return make


def build(model_type: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> ModelSpec:
    view = CheckpointView(CheckpointConfig(config), TensorTable(tensors), Facts())
    return family_builder(model_type)(view)


def refusal(model_type: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> CheckpointError | None:
    try:
        build(model_type, config, tensors)
    except CheckpointError as error:
        return error
    return None


def others(value: Any) -> Iterator[Any]:
    """Other values of the same type; for an absent key, some of each."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 2, value * 0.5, 0)
    elif isinstance(value, str):
        yield from ("gelu", "nope", "other")
    elif isinstance(value, list):
        yield from (value[::-1], value[:-1], [0], [0.1, 0.2])
    else:
        yield from (3, True, False, 0.5, 2, "other", ["other"], [0.1, 0.2], [0], 1)


def test_every_family_has_a_table() -> None:
    assert all(config_keys(model_type) for model_type in FAMILIES)
    assert set(TYPES) | set(AROUND) == set(FAMILIES) - ELSEWHERE - REMOTE


@pytest.mark.parametrize(
    "model_type", sorted(TYPES.keys() - {"kimi_k2", "mimo"})
)  # which transformers reads by remote code
def test_every_key_of_transformers_is_in_the_table(model_type: str) -> None:
    keys = AutoConfig.for_model(model_type).to_dict()
    assert not [key for key in keys if key not in config_keys(model_type) and not key.startswith("_")]


@pytest.mark.parametrize("model_type", AROUND)
def test_the_keys_around_a_text_model(model_type: str) -> None:
    """Its own keys have the rules that they have alone, and the outer ones are known."""
    keys, text = config_keys(model_type), config_keys(model_type)["text_config"]
    assert isinstance(text, Members)
    assert text.rules == config_keys(AROUND[model_type])
    assert not [key for key in AutoConfig.for_model(model_type).to_dict() if key not in keys and key[0] != "_"]


@pytest.mark.parametrize("model_type", TYPES)
def test_changing_any_key_has_the_effect_that_the_table_says(model_type: str, tiny: Callable[[str], Tiny]) -> None:
    found = tiny(model_type)
    spec = build(model_type, found.config, found.tensors)
    wrong: list[str] = []
    for key, rule in config_keys(model_type).items():
        value = found.config.get(key)
        if isinstance(rule, Used) and key not in OUTSIDE_THE_SPEC:
            if not _has_effect(model_type, key, found):
                wrong.append(f"{key} is used, but no value changes anything")
        elif isinstance(rule, Only):
            error = refusal(model_type, found.config | {key: "never"}, found.tensors)
            if not isinstance(error, UnsupportedArchitecture) or key not in error.message:
                wrong.append(f"{key} is not refused")
        elif isinstance(rule, Biases):
            present = _has_biases(found.tensors, rule.owners)
            error = refusal(model_type, found.config | {key: not present}, found.tensors)
            if not isinstance(error, TensorShapeMismatch) or error.param != key:
                wrong.append(f"{key}: {value} has biases {present}, and {not present} is not refused")
        elif isinstance(rule, Members):
            error = refusal(model_type, found.config | {key: {"no_such_member": [1]}}, found.tensors)
            if not isinstance(error, UnsupportedArchitecture) or error.param != f"{key}.no_such_member":
                wrong.append(f"{key}: an unknown member is not refused")
    for changes in _harmless_changes(model_type):
        if build(model_type, found.config | changes, found.tensors) != spec:
            wrong.append(f"{changes} is harmless, but changes the spec")
    assert not wrong


def _harmless_changes(model_type: str) -> Iterator[dict[str, Any]]:
    """Each value in all harmless keys at once, and each key alone with one of the values in turn.

    All pairs of them, one at a time, take four times as long.
    """
    keys = [key for key, rule in config_keys(model_type).items() if isinstance(rule, Harmless)]
    values: tuple[Any, ...] = ({}, True, 7, "other")
    for value in values:
        yield dict.fromkeys(keys, value)
    for key, value in zip(keys, itertools.cycle(values), strict=False):
        yield {key: value}


def _has_effect(model_type: str, key: str, found: Tiny) -> bool:
    """Whether some other value of the key changes the spec, or is refused."""
    known = config_keys(model_type)
    config = found.config | {name: value for name, value in PREPARED.get(key, {}).items() if name in known}
    before = _outcome(model_type, config, found.tensors)
    changed = (config | {key: other} for other in others(config.get(key)))
    return any(_outcome(model_type, values, found.tensors) != before for values in changed)


def _outcome(model_type: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> ModelSpec | str:
    """The spec, or the message of the refusal."""
    try:
        return build(model_type, config, tensors)
    except CheckpointError as error:
        return error.message


@pytest.mark.parametrize("member", [name for name, rule in ROPE_MEMBERS.items() if isinstance(rule, Used)])
def test_every_member_of_the_rope_keys_has_an_effect(member: str) -> None:
    config = {"num_attention_heads": 4, "max_position_embeddings": 64}
    base: dict[str, Any] = {"factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
    lists = {"short_factor": [1.0, 2.0], "long_factor": [1.0, 2.0]}
    for kind in ("linear", "dynamic", "llama3", "yarn", "longrope"):
        rope = base | {"rope_type": kind} | (lists if kind == "longrope" else {})
        if member == "type":
            del rope["rope_type"]
        before = family_builder("llama")(view_of(llama(1), config | {"rope_parameters": rope}))
        for other in others(rope.get(member)):
            changed = view_of(llama(1), config | {"rope_parameters": rope | {member: other}})
            try:
                if family_builder("llama")(changed) != before:
                    return
            except CheckpointError:
                return
    pytest.fail(f"{member} has no effect")


def _other(value: float) -> float:
    """Another value of the same type, in the range that transformers allows."""
    if isinstance(value, bool):
        return not value
    return value * 2 + 1 if isinstance(value, int) else value / 2 + 0.1


NOT_FREE = {
    "expand", "mamba_expand", "d_model", "head_dim", "num_key_value_heads", "n_shared_experts", "is_encoder_decoder",
    "is_decoder", "return_dict", "intermediate_size", "block_ffn_dim_multiplier", "block_multiple_of",
    "block_auto_adjust_ff_dim", "num_dense_layers", "word_embed_proj_dim", "block_size",
    "ffn_proj_factor", "ffn_round_up_to_multiple_of", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by",
}  # fmt: skip
"""Keys that transformers computes shapes from, where blazr has the shapes, and its form of a result."""
LEAST_TIME_STEP = {"nemotron_h", "zamba2"}
"""Families where transformers 5 raises Δ to a training's ``time_step_min``, which the published code doesn't read."""


@pytest.mark.parametrize("model_type", TYPES)
def test_harmless_keys_change_no_logits_of_transformers(model_type: str, tiny: Callable[[str], Tiny]) -> None:
    found = tiny(model_type)
    config: PretrainedConfig = found.model.config.get_text_config()
    tokens = torch.randint(0, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = found.model(tokens, use_cache=False).logits
    tested, values = 0, config.to_dict()
    for key, rule in config_keys(model_type).items():
        value = values.get(key)
        if not isinstance(rule, Harmless) or key in NOT_FREE or not isinstance(value, bool | int | float):
            continue
        if key == "time_step_min" and model_type in LEAST_TIME_STEP:
            continue
        other = copy.deepcopy(config)
        setattr(other, key, _other(value))
        model = model_of(other)
        model.load_state_dict(found.model.state_dict())
        with torch.inference_mode():
            logits = model(tokens, use_cache=False, return_dict=True).logits
        assert torch.allclose(logits, expected, atol=1e-5), key
        tested += 1
    assert tested >= 4


@pytest.mark.parametrize("name", PUBLISHED | ONCE_REFUSED_AROUND)
def test_keys_of_published_checkpoints_pass(name: str) -> None:
    model_type, config = (PUBLISHED | ONCE_REFUSED_AROUND)[name]
    check_config_keys(view_of({}, config), model_type, config_keys(model_type))


def test_a_published_checkpoint_of_each_family_is_among_them() -> None:
    assert {model_type for model_type, _ in PUBLISHED.values()} == set(TYPES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_of_oxidizrs_examples_pass(name: str) -> None:
    check_config_keys(view_of({}, EXAMPLES[name]), "oxidizr", config_keys("oxidizr"))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"logit_scale": 2.0}, "logit_scale"),
        ({"vision": {"layers": 2}}, "vision"),
        ({"attention": {"use_alibi": True}}, "attention.use_alibi"),
        ({"attention": {"rope_theta": 500000.0}}, "attention.rope_theta"),
        ({"ssm": {"gate": 1}}, "ssm.gate"),
    ],
)
def test_other_keys_of_oxidizr_are_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        check_config_keys(view_of({}, EXAMPLES["nano"] | change), "oxidizr", config_keys("oxidizr"))
    assert caught.value.param == param
