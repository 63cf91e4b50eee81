"""LongCat-Flash: a layer of the files is two layers, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.longcat_flash import build_spec
from tests.inference.modelling.families.headers import HIDDEN, experts, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {"num_attention_heads": 4, "num_layers": 2, "moe_topk": 2, "zero_expert_num": 3}


def shapes(count: int = 2, *, has_query_latent: bool = True) -> dict[str, tuple[int, ...]]:
    found = outer()
    for number in range(count):
        layer = f"model.layers.{number}."
        for half in (0, 1):
            found |= norms(layer, f"input_layernorm.{half}", f"post_attention_layernorm.{half}")
            found |= mlp(f"{layer}mlps.{half}.")
            base = f"{layer}self_attn.{half}."
            found |= {
                f"{base}kv_a_proj_with_mqa.weight": (8 + 4, HIDDEN),
                f"{base}kv_a_layernorm.weight": (8,),
                f"{base}kv_b_proj.weight": (4 * (6 + 5), 8),
                f"{base}o_proj.weight": (HIDDEN, 4 * 5),
            }
            if has_query_latent:
                found |= {f"{base}q_a_proj.weight": (4, HIDDEN), f"{base}q_a_layernorm.weight": (4,)}
                found[f"{base}q_b_proj.weight"] = (4 * (6 + 4), 4)
            else:
                found[f"{base}q_proj.weight"] = (4 * (6 + 4), HIDDEN)
        found |= experts(f"{layer}mlp.experts.")
        found |= {
            f"{layer}mlp.router.classifier.weight": (7, HIDDEN),
            f"{layer}mlp.router.e_score_correction_bias": (7,),
        }
    return found


def test_a_layer_of_the_files_is_two_layers() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    assert [layer.kind for layer in spec.layers] == ["mla+mlp+moe", "mla+mlp"] * 2
    moe, mla = spec.layers[0].shortcut, spec.layers[0].token_mixer
    assert (moe.num_experts, moe.num_identity_experts, moe.top_k, moe.routed_scaling_factor) == (4, 3, 2, 6.0)
    assert mla.scale == pytest.approx(10**-0.5 * (16 / 4) ** 0.5)
    assert mla.latent_multiplier == pytest.approx(2**0.5)
    assert mla.rope.theta == 1e7


def test_matrices_of_experts_that_do_nothing_are_left_out() -> None:
    idle = {f"model.layers.0.mlp.experts.{number}.{name}_proj.weight": (8, HIDDEN) for number in (4, 6) for name in
            ("gate", "up")}  # fmt: skip
    drafts = {"model.mtp.layers.0.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    assert build_spec(view_of(shapes() | idle | drafts, CONFIG)) == build_spec(view_of(shapes(), CONFIG))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"zero_expert_num": 2}, "zero_expert_num"),
        ({"n_routed_experts": 7}, "n_routed_experts"),
        ({"expert_ffn_hidden_size": 7}, "expert_ffn_hidden_size"),
        ({"ffn_hidden_size": 7}, "ffn_hidden_size"),
        ({"moe_topk": 8}, "num_experts_per_tok"),
        ({"router_bias": True}, "router_bias"),
        ({"num_layers": 4}, "model.layers.2"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_queries_without_a_latent_are_refused() -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(has_query_latent=False), CONFIG))
    assert caught.value.param == "q_lora_rank"
