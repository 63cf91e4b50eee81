"""Rules for keys of config.json: what is refused, and how an operator leaves a key out."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, InvalidRequest, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config_keys import (
    IGNORED_KEYS,
    USED,
    Alias,
    Biases,
    Harmless,
    Members,
    Only,
    check_config_keys,
)
from inference.modelling.families.registry import family_builder
from tests.inference.modelling.families.headers import HIDDEN, attention, fact, llama, mamba2, norms, outer, view_of

RULES = {
    "size": USED,
    "note": Harmless("no arithmetic"),
    "flag": Only((False,), "it is off"),
    "types": Only(("full",), "all are full"),
    "never": Only((), "there is none"),
    "bias": Biases(r"self_attn\.[qkv]_proj"),
    "rope_parameters": Members({"theta": USED, "kind": Only(("plain",), "no other")}),
    "parts": Members({"size": USED, "width": USED, "breadth": Alias(("width",))}),
    "length": Alias(("size", "parts.size")),
}


def check(config: dict[str, Any], overrides: dict[str, Any] | None = None, shapes: dict | None = None) -> Any:
    view = view_of(shapes or {}, config, overrides)
    check_config_keys(view, "toy", RULES)
    return view


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": 3, "note": {"any": "thing"}, "flag": False, "types": ["full", "full"]},
        {"never": None, "unknown": None, "_private": 7},
        {"rope_parameters": {"theta": 1.0, "kind": "plain"}},
        {"rope_parameters": {"first": {"theta": 1.0}, "second": {"kind": "plain"}}},
        {"rope_parameters": {}},
        {"parts": {}},
        {"parts": None},
        {"length": 3},
        {"length": 3, "size": 3.0, "parts": {"size": 3}},
        {"length": 3, "size": None, "parts": {"size": None}},
        {"length": None, "size": 4},
        {"parts": {"width": 2, "breadth": 2}},
    ],
)
def test_keys_of_the_table_pass(config: dict) -> None:
    assert check(config).facts.warnings == []


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        ({"logit_scale": 0.5}, "logit_scale", "has 1 keys that toy isn't known to have"),
        ({"flag": True}, "flag", "served only with false: it is off"),
        ({"types": ["full", "sliding"]}, "types", "served only with 'full'"),
        ({"never": 4096}, "never", "served only with null"),
        ({"rope_parameters": {"sections": [1]}}, "rope_parameters.sections", "rope_parameters.sections"),
        ({"rope_parameters": {"first": {"kind": "odd"}, "second": {}}}, "rope_parameters.kind", "'odd'"),
        ({"parts": {"first": {"size": 3}}}, "parts.first", "has 1 keys that toy isn't known to have"),
    ],
)
def test_other_keys_and_values_are_refused_unless_they_are_left_out(config: dict, name: str, words: str) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        check(config)
    assert words in caught.value.message
    assert f"--override {IGNORED_KEYS}={name}" in caught.value.message
    assert caught.value.param == name
    view = check(config, {IGNORED_KEYS: name})
    assert fact(view, IGNORED_KEYS)[0] == name
    assert any(name in warning for warning in view.facts.warnings)


def test_several_unknown_keys_are_named_together() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"3 keys .*: a, b, c") as caught:
        check({"a": 1, "b": 2, "size": 3, "c": 4})
    assert f"{IGNORED_KEYS}=a,b,c" in caught.value.message
    check({"a": 1, "b": 2, "size": 3, "c": 4}, {IGNORED_KEYS: "a, b,c"})
    with pytest.raises(UnsupportedArchitecture) as caught:
        check({f"key{number}" * 30: 1 for number in range(1000)})
    assert len(caught.value.message) < 1500


def test_leaving_out_what_is_not_refused_is_an_error() -> None:
    for name in ("size", "absent"):
        with pytest.raises(InvalidRequest, match=f"{name}, which would not be refused"):
            check({"size": 3}, {IGNORED_KEYS: name})


@pytest.mark.parametrize(("biases", "value"), [(True, False), (False, True)])
def test_a_flag_that_contradicts_the_biases_is_refused(biases: bool, value: bool) -> None:
    shapes: dict = {"a.self_attn.q_proj.weight": (2, 2)} | ({"a.self_attn.q_proj.bias": (2,)} if biases else {})
    check({"bias": not value}, shapes=shapes)
    with pytest.raises(TensorShapeMismatch, match=f"says bias {str(value).lower()}") as caught:
        check({"bias": value}, shapes=shapes)
    assert caught.value.param == "bias"


def test_a_flag_of_layers_that_are_not_there_has_no_effect() -> None:
    for value in (True, False):
        check({"bias": value}, shapes={"a.mlp.up_proj.weight": (2, 2)})


LLAMA = {"model_type": "llama", "num_attention_heads": 4, "hidden_act": "silu"}


@pytest.mark.parametrize(
    "config",
    [
        {"attention_multiplier": 0.01},
        {"logits_scaling": 8.0},
        {"embedding_multiplier": 12.0},
        {"clip_qkv": 8.0},
        {"no_rope_layers": [1, 0]},
        {"sliding_window": 8},
        {"rope_interleaved": True},
        {"is_causal": False},
        {"attn_logit_softcapping": 30.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}},
        {"layer_types": ["sliding_attention", "full_attention"]},
    ],
)
def test_what_look_alikes_of_llama_set_is_refused(config: dict) -> None:
    with pytest.raises(UnsupportedArchitecture, match=next(iter(config))):
        family_builder("llama")(view_of(llama(), LLAMA | config))


def test_a_granite_without_mamba_layers_keeps_its_mamba_flags() -> None:
    """The published dense ones state them."""
    shapes = outer()
    layer = "model.layers.0."
    shapes |= norms(layer) | attention(f"{layer}self_attn.")
    shapes |= {f"{layer}shared_mlp.input_linear.weight": (48, HIDDEN)}
    shapes |= {f"{layer}shared_mlp.output_linear.weight": (HIDDEN, 24)}
    config = {"num_attention_heads": 4, "mamba_conv_bias": True, "mamba_proj_bias": True, "num_local_experts": 0}
    assert len(family_builder("granitemoehybrid")(view_of(shapes, config)).layers) == 1
    found = {name: shape for name, shape in shapes.items() if ".self_attn." not in name} | mamba2(f"{layer}mamba.")
    with pytest.raises(TensorShapeMismatch, match="mamba_proj_bias true"):
        family_builder("granitemoehybrid")(view_of(found, config))


@pytest.mark.parametrize("value", ["4", 4, 0, False, [], [{"size": 4}]])
def test_a_key_whose_members_are_read_has_to_be_an_object(value: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"parts is .* must be an object \(of breadth, size, width\)") as caught:
        check({"parts": value})
    assert caught.value.param == "parts"
    assert fact(check({"parts": value}, {IGNORED_KEYS: "parts"}), IGNORED_KEYS)[0] == "parts"


@pytest.mark.parametrize(
    ("config", "param", "words"),
    [
        ({"length": 3, "size": 4}, "length", "length is '3', but size is '4'; they are two names of one setting"),
        ({"parts": {"size": 4}, "length": 3}, "length", "but parts.size is '4'"),
        ({"parts": {"width": 1, "breadth": 2}}, "parts.breadth", "parts.breadth is '2', but parts.width is '1'"),
        ({"length": False, "size": "off"}, "length", "length is 'False', but size is 'off'"),
    ],
)
def test_two_names_of_a_setting_with_two_values_are_refused(config: dict, param: str, words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="Remove the one that the model wasn't trained with") as caught:
        check(config)
    assert words in caught.value.message and caught.value.param == param
    view = check(config, {IGNORED_KEYS: param})
    assert any(param in warning for warning in view.facts.warnings)


def test_an_infinity_is_the_same_in_both_names() -> None:
    check({"length": {"__float__": "Infinity"}, "size": {"__float__": "Infinity"}})
