"""Gemma 3n: what is read layer by layer, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.gemma3n import build_spec
from tests.inference.modelling.families.headers import view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 6, "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip


def shapes(count: int = 3) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (50, 16),
        "model.norm.weight": (16,),
        "model.embed_tokens_per_layer.weight": (40, 6 * count),
        "model.per_layer_model_projection.weight": (6 * count, 16),
        "model.per_layer_projection_norm.weight": (6,),
    }
    for number in range(2):
        found |= {f"model.altup_{name}projections.{number}.weight": (16, 16) for name in ("", "unembed_")}
    for number in range(count):
        layer = f"model.layers.{number}."
        norms = [f"{name}_layernorm" for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")]
        norms += ["post_per_layer_input_norm", "altup.router_norm", "laurel.post_laurel_norm"]
        found |= {f"{layer}{name}.weight": (16,) for name in norms}
        found |= {f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"}
        found |= {f"{layer}self_attn.{name}_proj.weight": (8, 16) for name in "kv"}
        found |= {f"{layer}self_attn.{name}_proj.weight": (16, 16) for name in "qo"}
        found |= {f"{layer}mlp.{name}_proj.weight": (24, 16) for name in ("gate", "up")}
        found |= {
            f"{layer}mlp.down_proj.weight": (16, 24),
            f"{layer}per_layer_input_gate.weight": (6, 16),
            f"{layer}per_layer_projection.weight": (16, 6),
            f"{layer}altup.prediction_coefs.weight": (9, 3),
            f"{layer}altup.correction_coefs.weight": (3, 3),
            f"{layer}altup.modality_router.weight": (3, 16),
            f"{layer}altup.correct_output_scale": (16,),
            f"{layer}laurel.linear_left.weight": (5, 16),
            f"{layer}laurel.linear_right.weight": (16, 5),
        }
    return found


def test_sizes_come_from_the_shapes() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    altup = spec.layers[0].altup
    assert (altup.num_streams, altup.active, altup.laurel_rank, spec.streams.num_streams) == (3, 0, 5, 3)
    assert [layer.token_mixer.kv_source for layer in spec.layers] == [None, None, 1]
    assert [layer.channel_mixer.gate_sparsity for layer in spec.layers] == [0.0] * 3
    assert [layer.token_mixer.rope.theta for layer in spec.layers] == [10000.0, 1e6, 1e6]
    assert (spec.layers[0].token_mixer.scale, spec.logits_softcap, spec.embedding_multiplier) == (1.0, 30.0, 4.0)


def test_the_first_ten_layers_of_a_deep_model_cut_their_gates() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "layer_types"}
    spec = build_spec(view_of(shapes(12), config))
    assert [layer.channel_mixer.gate_sparsity for layer in spec.layers] == [0.95] * 10 + [0.0] * 2
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == ([6] * 4 + [None]) * 2 + [6] * 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"altup_num_inputs": 4}, "altup_num_inputs"),
        ({"altup_active_idx": 3}, "altup_active_idx"),
        ({"laurel_rank": 8}, "laurel_rank"),
        ({"intermediate_size": [24, 24]}, "intermediate_size"),
        ({"intermediate_size": [24, 25, 24]}, "intermediate_size"),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": 1.0}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": ["much"] * 3}, "activation_sparsity_pattern"),
        ({"vocab_size_per_layer_input": 50}, "vocab_size_per_layer_input"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_a_missing_table_is_named() -> None:
    with pytest.raises(CheckpointError, match="embed_tokens_per_layer"):
        build_spec(view_of({name: shape for name, shape in shapes().items() if "per_layer.w" not in name}, CONFIG))
