"""What configs have in common: rotation and its scaling, windows, functions of scores."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf import config_parts, configs
from inference.modelling.gguf.metadata import Metadata
from inference.modelling.gguf.parts import read_parts
from tests.inference.modelling.gguf.converter import llama3_factors
from tests.inference.modelling.gguf.writer import Tensor, value, write_gguf

LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
HEADS = {"block_count": 2, "embedding_length": 256, "attention.head_count": 2, "rope.freq_base": 500000.0}


def make_metadata(directory: Path, arch: str, keys: dict, **tensors: list[float]) -> Metadata:
    """Metadata of a file with these keys of the architecture and these tensors in F32."""
    path = directory / "m.gguf"
    stated = {f"{arch}.{key}": given for key, given in keys.items()}
    places = [
        Tensor(f"{name}.weight", (len(values),), struct.pack(f"<{len(values)}f", *values))
        for name, values in tensors.items()
    ]
    write_gguf(path, {"general.architecture": arch} | stated, places)
    return Metadata(read_parts([path]))


@pytest.fixture
def meta(tmp_path):
    return partial(make_metadata, tmp_path)


def test_the_divisors_of_llama_3_are_its_rule(meta):
    factors = llama3_factors(LLAMA31, 500000.0, 128)
    found = configs.llama(meta("llama", HEADS, rope_freqs=factors.tolist()))
    assert found["rope_scaling"] == {"rope_type": "llama3"} | LLAMA31


def test_other_divisors_are_taken_as_they_are(meta):
    found = configs.llama(meta("llama", HEADS, rope_freqs=[1.0] * 32 + [3.0] * 32))["rope_scaling"]
    assert (found["rope_type"], found["short_factor"], found["attention_factor"]) == (
        "longrope",
        [1.0] * 32 + [3.0] * 32,
        1.0,
    )
    assert "rope_scaling" not in configs.llama(meta("llama", HEADS, rope_freqs=[1.0] * 64))


@pytest.mark.parametrize(("base", "divisor"), [(float("inf"), 2.0), (5e5, 0.0), (5e5, -1.0), (5e5, float("nan"))])
def test_divisors_by_which_nothing_can_be_divided_are_left_to_the_family(base, divisor, meta):
    found = configs.llama(meta("llama", HEADS | {"rope.freq_base": base}, rope_freqs=[divisor] * 64))["rope_scaling"]
    assert found["rope_type"] == "longrope"


def test_a_part_of_the_head_is_rotated(meta):
    assert configs.phi3(meta("phi3", HEADS | {"rope.dimension_count": 96}))["partial_rotary_factor"] == 0.75
    assert "partial_rotary_factor" not in configs.phi3(meta("phi3", HEADS | {"rope.dimension_count": 128}))


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"block_count": 32, "context_length": 4096}, 2047),
        ({"block_count": 40, "context_length": 4096}, 2047),
        ({"block_count": 32, "context_length": 4096, "attention.sliding_window": 0}, None),
        ({"block_count": 32, "context_length": 4096, "attention.sliding_window": 100}, 100),
        ({"block_count": 32, "context_length": 131072}, None),
    ],
)
def test_the_first_files_of_phi_3_do_not_state_their_windows(keys, window, meta):
    """Microsoft's own file of the 4K model is one of them; it was computed without."""
    assert configs.phi3(meta("phi3", HEADS | keys))["sliding_window"] == window


def test_an_unknown_stretch_is_refused(meta):
    with pytest.raises(UnsupportedArchitecture, match=r"llama\.rope\.scaling\.type is 'ntk'"):
        configs.llama(meta("llama", HEADS | {"rope.scaling.type": "ntk"}))


def test_the_defaults_of_the_rotation_can_be_stated(meta):
    keys = {key: given for key, given in HEADS.items() if key != "rope.freq_base"}
    assert config_parts.stated_rope(meta("glm4", keys)) == {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    found = config_parts.stated_rope(meta("glm4", HEADS | {"rope.dimension_count": 64}))
    assert found == {"rope_theta": 500000.0, "partial_rotary_factor": 0.5}


WINDOW, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, [WINDOW, WINDOW, WINDOW, FULL]),
        (value(2, "u32"), [WINDOW, FULL, WINDOW, FULL]),
        (value(1, "u32"), [FULL] * 4),
        (value(0, "u32"), [WINDOW] * 4),
        (value([False, True, True, False], "bool"), [FULL, WINDOW, WINDOW, FULL]),
        (value([True, False, False, False, True], "bool"), [WINDOW, FULL, FULL, FULL]),
    ],
)
def test_the_pattern_of_windows_is_stated_in_several_ways(pattern, expected, meta):
    keys = HEADS | {"block_count": 5, "nextn_predict_layers": 1}
    stated = {} if pattern is None else {"attention.sliding_window_pattern": pattern}
    assert config_parts.window_types(meta("exaone-moe", keys | stated), 8) == {
        "sliding_window": 8,
        "layer_types": expected,
    }
    assert config_parts.window_types(meta("exaone-moe", keys | stated), 0) == {"sliding_window": None}


def test_the_first_of_so_many_layers_may_be_the_full_one(meta):
    found = config_parts.window_types(meta("laguna", HEADS | {"block_count": 6}), 8, full_first=True)
    assert found["layer_types"] == [FULL, WINDOW, WINDOW, WINDOW, FULL, WINDOW]


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, 8.0),
        ({"rope.scale_linear": 1.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, None),
    ],
)
def test_a_factor_without_a_type_is_linear(keys, factor, meta):
    """Files from 2023, as those of Vicuna 1.5 16K, have the first; the text was as if there were none."""
    found = configs.llama(meta("llama", HEADS | keys))
    assert found.get("rope_scaling") == (factor and {"rope_type": "linear", "factor": factor})


def test_the_magnitude_of_yarn_has_two_keys(meta):
    stretched = HEADS | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    for key in ("attn_factor", "yarn_attn_factor"):
        found = configs.llama(meta("llama", stretched | {f"rope.scaling.{key}": 1.25}))
        assert found["rope_scaling"]["attention_factor"] == 1.25


def test_a_magnitude_of_yarn_below_one_takes_yarns_own_back(meta):
    """DeepSeek-R1-0528-Qwen3-8B states attn_factor, which the converter writes under the same key; it was absolute."""
    stretched = HEADS | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    found = configs.llama(meta("llama", stretched | {"rope.scaling.attn_factor": 0.8782488562869419}))["rope_scaling"]
    assert found["attn_factor"] == pytest.approx(0.87824886)
    assert "attention_factor" not in found


def test_scores_that_are_not_divided_are_refused(meta):
    for stated in ({}, {"expert_weights_norm": True}):
        config_parts.expect_normalised(meta("hy_v3", HEADS | stated))
    with pytest.raises(UnsupportedArchitecture, match=r"hy_v3\.expert_weights_norm is false"):
        config_parts.expect_normalised(meta("hy_v3", HEADS | {"expert_weights_norm": False}))


def test_a_function_of_the_scores_is_known_or_left_out(meta):
    for gating in ({}, {"expert_gating_func": 0}, {"expert_gating_func": 2}):
        config_parts.expect_gating(meta("dots1", HEADS | gating), config_parts.GATING_SIGMOID)
    with pytest.raises(UnsupportedArchitecture, match=r"dots1\.expert_gating_func is 1; 2 \(sigmoid\) is read"):
        config_parts.expect_gating(meta("dots1", HEADS | {"expert_gating_func": 1}), config_parts.GATING_SIGMOID)
