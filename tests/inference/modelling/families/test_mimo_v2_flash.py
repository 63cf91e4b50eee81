"""MiMo-V2-Flash: heads by the kind of a layer, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint
from inference.modelling.families.mimo_v2_flash import build_spec
from tests.inference.modelling.families.headers import HIDDEN, experts, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12, "v_head_dim": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def shapes(count: int = 6, full: tuple[int, ...] = (0, 5)) -> dict[str, tuple[int, ...]]:
    found = outer()
    for number in range(count):
        layer, is_full = f"model.layers.{number}.", number in full
        kv_heads = 1 if is_full else 2
        found |= norms(layer, "input_layernorm", "post_attention_layernorm")
        found |= {
            f"{layer}self_attn.q_proj.weight": (48, HIDDEN),
            f"{layer}self_attn.k_proj.weight": (12 * kv_heads, HIDDEN),
            f"{layer}self_attn.v_proj.weight": (8 * kv_heads, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, 32),
        }
        if not is_full:
            found[f"{layer}self_attn.attention_sink_bias"] = (4,)
        if number:
            found |= experts(f"{layer}mlp.experts.") | {f"{layer}mlp.gate.weight": (4, HIDDEN)}
            found[f"{layer}mlp.gate.e_score_correction_bias"] = (4,)
        else:
            found |= mlp(f"{layer}mlp.")
    return found


def test_windowed_layers_have_sinks_and_twice_the_heads() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [mixer.num_kv_heads for mixer in mixers] == [1, 2, 2, 2, 2, 1]
    assert [mixer.has_sinks for mixer in mixers] == [False, True, True, True, True, False]
    assert [mixer.sliding_window for mixer in mixers] == [None, 129, 129, 129, 129, None]
    assert [mixer.rope.theta for mixer in mixers[:2]] == [5e6, 1e4]
    assert (mixers[0].rope.rotary_dim, mixers[0].v_head_dim, mixers[0].output_multiplier) == (4, 8, 0.707)
    assert [part.shape for part in mixers[1].state()] == [(2, 12), (2, 8)]
    assert [layer.channel_mixer.kind for layer in spec.layers] == ["mlp"] + ["moe"] * 5


def test_the_size_of_a_window_does_not_count_the_query() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"sliding_window_size": 7}))
    assert spec.layers[1].token_mixer.sliding_window == 8


PUBLISHED = CONFIG | {
    "hybrid_layer_pattern": [0, 1, 0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1, 1, 1], "layernorm_epsilon": 1e-4,
    "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334, "sliding_window": 128,
    "sliding_window_size": 128,
}  # fmt: skip


def test_the_published_keys_say_the_kind_of_each_layer() -> None:
    drafting = norms("model.mtp.layers.0.", "enorm", "hnorm")
    spec = build_spec(view_of(shapes(full=(0, 2, 5)) | drafting, PUBLISHED))
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == [None, 129, None, 129, 129, None]
    assert spec.layers[0].token_norm.eps == 1e-4


@pytest.mark.parametrize("flags", [[0, 1], [0, 1, 2, 1, 1, 0]])
@pytest.mark.parametrize("key", ["hybrid_layer_pattern", "moe_layer_freq"])
def test_flags_of_layers_are_zero_or_one_for_each(key: str, flags: list[int]) -> None:
    with pytest.raises(CorruptCheckpoint, match="it must have 0 or 1 for each of 6 layers") as caught:
        build_spec(view_of(shapes(), CONFIG | {key: flags}))
    assert caught.value.param == key


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"head_dim": 16}, "head_dim"),
        ({"v_head_dim": 16}, "v_head_dim"),
        ({"num_key_value_heads": 2}, "model.layers.0.self_attn.q_proj.weight"),
        ({"num_attention_heads": 5}, "model.layers.0.self_attn.q_proj.weight"),
        ({"mlp_layer_types": ["sparse"] * 6}, "mlp_layer_types"),
        ({"moe_layer_freq": [1] * 6}, "mlp_layer_types"),
        ({"n_routed_experts": 8}, "n_routed_experts"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param
