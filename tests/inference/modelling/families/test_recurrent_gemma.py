"""RecurrentGemma: kinds of layers, the embedding's factor, contradictions of config.json."""

from __future__ import annotations

import pytest
import torch

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.recurrent_gemma import build_spec, rounded_to_bfloat16
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.linear import RGLRUSpec
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, attention, mlp, norms, outer, view_of

CONFIG = {
    "num_attention_heads": 4, "block_types": ["recurrent", "attention"], "intermediate_size": 2 * WIDTH,
    "attention_window_size": 6,
}  # fmt: skip


def shapes() -> dict:
    found = outer("final_norm")
    for number in (0, 1):
        layer = f"model.layers.{number}."
        found |= norms(layer, "temporal_pre_norm", "channel_pre_norm") | mlp(f"{layer}mlp_block.")
    base = "model.layers.0.temporal_block."
    for name, rows, columns in (("linear_y", 12, HIDDEN), ("linear_x", 12, HIDDEN), ("linear_out", HIDDEN, 12)):
        found |= {f"{base}{name}.weight": (rows, columns), f"{base}{name}.bias": (rows,)}
    for name in ("input", "recurrent"):
        found |= {f"{base}rg_lru.{name}_gate_weight": (3, 4, 4), f"{base}rg_lru.{name}_gate_bias": (3, 4)}
    found |= {f"{base}conv_1d.weight": (12, 1, 4), f"{base}conv_1d.bias": (12,), f"{base}rg_lru.recurrent_param": (12,)}
    return found | attention("model.layers.1.temporal_block.")


def test_kinds_come_from_the_tensors() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second = (layer.token_mixer for layer in spec.layers)
    assert first == RGLRUSpec(12, 3, 4)
    assert isinstance(second, AttentionSpec) and second.sliding_window == 6
    assert second.rope is not None and second.rope.rotary_dim == second.head_dim // 2
    assert spec.layers[0].channel_mixer == MLPSpec(WIDTH, "gelu_tanh")
    assert (spec.embedding_multiplier, spec.logits_softcap, spec.final_norm.offset) == (4.0, 30.0, 1.0)


@pytest.mark.parametrize("value", [2560**0.5, 4096**0.5, 1.0, 3.1415926, 1.00390625, 1.01171875])
def test_factors_are_rounded_as_torch_rounds(value: float) -> None:
    assert rounded_to_bfloat16(value) == torch.tensor(value, dtype=torch.bfloat16).item()


@pytest.mark.parametrize(
    "change",
    [{"lru_width": 16}, {"conv1d_width": 3}, {"intermediate_size": WIDTH}, {"block_types": ["attention", "recurrent"]}],
    ids=str,
)
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_blocks_that_do_not_make_up_the_width_are_refused() -> None:
    found = shapes() | {"model.layers.0.temporal_block.rg_lru.input_gate_bias": (5, 4)}
    with pytest.raises(TensorShapeMismatch, match="5 blocks"):
        build_spec(view_of(found, CONFIG))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".1.temporal_block." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, CONFIG))
