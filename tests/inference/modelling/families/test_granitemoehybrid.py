"""Granite 4 hybrids: kinds by tensors, four multipliers, positions on request."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.granite_experts import EXPERT_NAMES
from inference.modelling.families.granitemoehybrid import build_spec
from inference.modelling.specs.layers import Mamba2Spec, MLPSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mamba2, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "residual_multiplier": 0.5, "embedding_multiplier": 12.0, "logits_scaling": 8.0}


def shapes(names: tuple[str, str, str] = EXPERT_NAMES[0]) -> dict:
    found = outer()
    for number in range(2):
        layer = f"model.layers.{number}."
        found |= norms(layer) | {f"{layer}shared_mlp.input_linear.weight": (48, HIDDEN)}
        found[f"{layer}shared_mlp.output_linear.weight"] = (HIDDEN, 24)
    found |= mamba2("model.layers.0.mamba.") | attention("model.layers.1.self_attn.")
    base = "model.layers.1.block_sparse_moe."
    sizes = ((4, HIDDEN), (4, 16, HIDDEN), (4, HIDDEN, 8))
    return found | {base + name: size for name, size in zip(names, sizes, strict=True)}


@pytest.mark.parametrize("names", EXPERT_NAMES)
def test_kinds_multipliers_and_experts_in_both_namings(names: tuple[str, str, str]) -> None:
    spec = build_spec(view_of(shapes(names), CONFIG))
    first, second = spec.layers
    assert isinstance(first.token_mixer, Mamba2Spec) and isinstance(first.channel_mixer, MLPSpec)
    assert isinstance(second.channel_mixer, MoESpec)
    assert (second.channel_mixer.num_experts, second.channel_mixer.shared_intermediate_size) == (4, 24)
    assert (first.residual_multiplier, spec.embedding_multiplier, spec.logits_multiplier) == (0.5, 12.0, 0.125)


def test_positions_only_where_the_config_has_rope() -> None:
    assert build_spec(view_of(shapes(), CONFIG)).layers[1].token_mixer.rope is None
    rope = CONFIG | {"position_embedding_type": "rope"}
    assert build_spec(view_of(shapes(), rope)).layers[1].token_mixer.rope is not None
    with pytest.raises(CorruptCheckpoint, match="one of nope, rope"):
        build_spec(view_of(shapes(), CONFIG | {"position_embedding_type": "alibi"}))
