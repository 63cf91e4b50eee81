"""Zamba 2: which layers share a block, where its tensors are, contradictions of config.json."""

from __future__ import annotations

import math

import pytest

from inference.errors import CheckpointError, MissingTensor, UnsupportedArchitecture
from inference.modelling.families.zamba2 import build_spec
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.shared_blocks import SharedBlockSpec
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, mamba2, norms, outer, view_of

CONFIG = {
    "num_attention_heads": 4, "num_mem_blocks": 2, "use_mem_rope": True, "mamba_ngroups": 1, "adapter_rank": 3,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"], "tie_word_embeddings": False,
}  # fmt: skip


def block(base: str, uses: tuple[int, ...]) -> dict:
    """Four heads of width 8 that read 2h, a gated MLP, adapters of rank 3 for each use."""
    attention, mlp = f"{base}self_attn.", f"{base}feed_forward."
    found = {f"{attention}{name}_proj.weight": (2 * HIDDEN, 2 * HIDDEN) for name in "qkv"}
    found |= {
        f"{attention}o_proj.weight": (HIDDEN, 2 * HIDDEN), f"{base}input_layernorm.weight": (2 * HIDDEN,),
        f"{base}pre_ff_layernorm.weight": (HIDDEN,), f"{mlp}gate_up_proj.weight": (2 * WIDTH, HIDDEN),
        f"{mlp}down_proj.weight": (HIDDEN, WIDTH),
    }  # fmt: skip
    for use in uses:
        found |= {f"{attention}linear_{name}_adapter_list.{use}.0.weight": (3, 2 * HIDDEN) for name in "qkv"}
        found |= {f"{attention}linear_{name}_adapter_list.{use}.1.weight": (2 * HIDDEN, 3) for name in "qkv"}
        found[f"{mlp}gate_up_proj_adapter_list.{use}.0.weight"] = (3, HIDDEN)
        found[f"{mlp}gate_up_proj_adapter_list.{use}.1.weight"] = (2 * WIDTH, 3)
    return found


def shapes() -> dict:
    found = outer("final_layernorm") | norms("model.layers.0.", "input_layernorm") | mamba2("model.layers.0.mamba.")
    for number in (1, 2, 3):
        layer = f"model.layers.{number}."
        found |= norms(f"{layer}mamba_decoder.", "input_layernorm") | mamba2(f"{layer}mamba_decoder.mamba.")
        found[f"{layer}linear.weight"] = (HIDDEN, HIDDEN)
    first, second = ("model.layers.1.shared_transformer.", "model.layers.2.shared_transformer.")
    return found | block(first, (0, 2)) | block(second, (1,))


def test_blocks_are_used_in_turn_and_stored_once() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    assert [layer.prologue and layer.prologue.block for layer in spec.layers] == [None, 0, 1, 0]
    first = spec.layers[1].prologue
    assert isinstance(first, SharedBlockSpec)
    assert (first.attention.head_dim, first.attention.scale, first.attention_rank, first.mlp_rank) == (8, 0.5, 3, 3)
    assert "layers.1.prologue.block.attention.qkv_proj.weight" in spec.parameters
    assert not any(name.startswith("layers.3.prologue.block.") for name in spec.parameters)
    adapter = spec.parameters["layers.3.prologue.mlp_down_proj.weight"].pieces[0].name
    assert adapter == "model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.2.0.weight"


def test_each_layer_has_its_own_keys_and_values_beside_its_state() -> None:
    layer = build_spec(view_of(shapes(), CONFIG)).layers[3]
    assert [part.name for part in layer.state()] == ["k", "v", "conv_state", "ssm_state"]
    assert layer.kind == "attention+mamba2"
    mixer = layer.token_mixer
    assert isinstance(mixer, Mamba2Spec) and (mixer.dt_min, mixer.dt_max) == (0.0, math.inf)


def test_time_steps_are_bounded_by_their_limit_and_not_by_those_of_a_training() -> None:
    training = {"time_step_min": 0.001, "time_step_max": 0.1}
    for limit, expected in ((None, (0.0, math.inf)), ([0.01, 0.5], (0.01, 0.5))):
        mixer = build_spec(view_of(shapes(), CONFIG | training | {"time_step_limit": limit})).layers[0].token_mixer
        assert isinstance(mixer, Mamba2Spec) and (mixer.dt_min, mixer.dt_max) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"layers_block_type": ["mamba"] * 4}, {"layers_block_type": ["mamba"]}, {"hybrid_layer_ids": [1, 2]},
        {"adapter_rank": 4}, {"attention_head_dim": 16}, {"attention_hidden_size": 16},
        {"use_shared_attention_adapter": False}, {"mamba_headdim": 4},
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_other_layer_types_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="'attention'"):
        build_spec(view_of(shapes(), CONFIG | {"layers_block_type": ["mamba", "attention", "hybrid", "hybrid"]}))


def test_another_number_of_blocks_lacks_tensors() -> None:
    with pytest.raises(MissingTensor, match=r"adapter_list\.1"):
        build_spec(view_of(shapes(), CONFIG | {"num_mem_blocks": 1}))
