"""MiniMax-Text-01: kinds of layers, where the factors of the residual stream end up, contradictions."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, UnsupportedArchitecture
from inference.modelling.families.minimax import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import LightningSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, norms, outer, view_of

CONFIG = {
    "num_attention_heads": 4, "num_experts_per_tok": 2, "linear_attn_alpha_factor": 2.0, "linear_attn_beta_factor": 3.0,
    "mlp_alpha_factor": 4.0, "rms_norm_eps": 1e-4,
}  # fmt: skip


def shapes() -> dict:
    first, second = "model.layers.0.", "model.layers.1."
    base = f"{first}self_attn."
    found = outer() | attention(f"{second}self_attn.")
    for layer in (first, second):
        found |= norms(layer) | experts(f"{layer}block_sparse_moe.experts.", names=("w1", "w3", "w2"))
        found[f"{layer}block_sparse_moe.gate.weight"] = (4, HIDDEN)
    return found | {
        f"{base}qkv_proj.weight": (3 * 12, HIDDEN), f"{base}output_gate.weight": (12, HIDDEN),
        f"{base}norm.weight": (12,), f"{base}out_proj.weight": (HIDDEN, 12), f"{base}slope_rate": (4, 1, 1),
    }  # fmt: skip


def test_factors_are_in_multipliers_and_eps() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second = spec.layers
    assert isinstance(first.token_mixer, LightningSpec) and isinstance(second.token_mixer, AttentionSpec)
    assert first.replaces_stream and second.replaces_stream
    assert (first.residual_multiplier, second.residual_multiplier) == (1.5, 1.0)
    assert (first.channel_multiplier, second.channel_multiplier) == (0.25, 0.25)
    found = [norm.eps for norm in (first.token_norm, first.channel_norm, second.token_norm, second.channel_norm)]
    assert [*found, spec.final_norm.eps] == [1e-4, 1e-4 / 4, 1e-4 / 16, 1e-4, 1e-4 / 16]


def test_decays_depend_on_the_layer_and_heads_are_sorted_by_kind() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, LightningSpec)
    assert (mixer.num_heads, mixer.head_dim, mixer.decay_factor) == (4, 3, 1 + 1e-5)
    groups = [piece.per_group for piece in spec.parameters["layers.0.token_mixer.in_proj.weight"].pieces]
    assert groups == [(9, 0, 3), (9, 3, 6), (9, 6, 9)]


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 5}, {"head_dim": 5}, {"mlp_alpha_factor": 0.0}, {"num_local_experts": 5},
        {"layer_types": ["full_attention", "linear_attention"]},
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert next(iter(change)) in (caught.value.param, *caught.value.message.split())


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".1.self_attn." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, CONFIG))
