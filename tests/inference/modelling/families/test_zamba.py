"""Zamba: whose block a layer runs, rows that take turns, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, TensorShapeMismatch
from inference.modelling.families.zamba import build_spec
from inference.modelling.specs.layers import Mamba1Spec
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, mlp, norms, outer, view_of

CONFIG = {
    "num_attention_heads": 4, "layers_block_type": ["mamba", "mamba", "hybrid", "hybrid"], "tie_word_embeddings": False,
}  # fmt: skip
HEADS, CHANNELS, STATE, RANK = 2, 16, 4, 3


def mamba(base: str) -> dict:
    inner = HEADS * CHANNELS
    return {
        f"{base}in_proj.weight": (2 * inner, HIDDEN), f"{base}conv1d.weight": (inner, 1, 4),
        f"{base}conv1d.bias": (inner,), f"{base}x_proj_weight": (HEADS, RANK + 2 * STATE, CHANNELS),
        f"{base}dt_proj_weight": (HEADS, CHANNELS, RANK), f"{base}dt_proj_bias": (HEADS, CHANNELS),
        f"{base}A_log": (HEADS, CHANNELS, STATE), f"{base}D": (HEADS, CHANNELS),
        f"{base}out_proj.weight": (HIDDEN, inner),
    }  # fmt: skip


def block(base: str) -> dict:
    """Four heads of width 8 that read 2h, a gated MLP."""
    found = {f"{base}self_attn.{name}_proj.weight": (2 * HIDDEN, 2 * HIDDEN) for name in "qkv"}
    found |= {
        f"{base}self_attn.o_proj.weight": (HIDDEN, 2 * HIDDEN), f"{base}input_layernorm.weight": (2 * HIDDEN,),
        f"{base}pre_ff_layernorm.weight": (HIDDEN,),
    }  # fmt: skip
    return found | mlp(f"{base}feed_forward.", WIDTH)


def shapes() -> dict:
    found = outer("final_layernorm")
    for number in range(4):
        layer = f"model.layers.{number}." if number < 2 else f"model.layers.{number}.mamba_decoder."
        found |= norms(layer, "input_layernorm") | mamba(f"{layer}mamba.")
        if number >= 2:
            found[f"model.layers.{number}.linear.weight"] = (HIDDEN, HIDDEN)
    return found | block("model.layers.2.shared_transf.")


def test_the_block_is_stored_once() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    assert [layer.prologue and layer.prologue.block for layer in spec.layers] == [None, None, 2, 2]
    first = spec.layers[2].prologue
    assert first is not None
    assert (first.attention.head_dim, first.attention.scale, first.attention.rope, first.mlp_rank) == (
        8,
        0.5,
        None,
        None,
    )
    assert "layers.2.prologue.block.mlp.gate_up_proj.weight" in spec.parameters
    assert not any(name.startswith("layers.3.prologue.block.") for name in spec.parameters)


def test_a_layer_with_tensors_of_its_own_has_a_block_of_its_own() -> None:
    spec = build_spec(view_of(shapes() | block("model.layers.3.shared_transf."), CONFIG))
    assert [layer.prologue and layer.prologue.block for layer in spec.layers] == [None, None, 2, 3]


def test_heads_and_rows_that_take_turns() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixer = spec.layers[3].token_mixer
    assert mixer == Mamba1Spec(HEADS * CHANNELS, STATE, 4, RANK, num_heads=HEADS)
    pieces = spec.parameters["layers.0.token_mixer.in_proj.weight"].pieces
    assert [piece.stride for piece in pieces] == [(0, 2), (1, 2)]


def test_a_period_counts_from_the_fourth_layer() -> None:
    config = {"num_attention_heads": 4, "attn_layer_period": 2, "attn_layer_offset": 0, "tie_word_embeddings": False}
    build_spec(view_of(shapes(), config))
    with pytest.raises(TensorShapeMismatch, match=r"attn_layer_period 2 and attn_layer_offset 1"):
        build_spec(view_of(shapes(), config | {"attn_layer_offset": 1}))


@pytest.mark.parametrize(
    "change",
    [
        {"layers_block_type": ["mamba"] * 4}, {"attention_head_dim": 16}, {"attention_hidden_size": 16},
        {"n_mamba_heads": 4}, {"mamba_d_state": 8}, {"mamba_dt_rank": 4}, {"mamba_d_conv": 3},
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_a_tensor_without_an_axis_of_heads_is_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match=r"layers\.0\.mamba\.A_log"):
        build_spec(view_of(shapes() | {"model.layers.0.mamba.A_log": (32, 4)}, CONFIG))
