"""HY 4: streams, gates and sinks, in all spellings of the files."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, MissingTensor
from inference.modelling.families.hy_v4 import build_spec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, view_of
from tests.inference.modelling.families.latent import layers

CONFIG: dict[str, Any] = {
    "model_type": "hy_v4", "num_attention_heads": 2, "num_experts_per_tok": 2, "hc_mult": 3, "hc_eps": 1e-3,
}  # fmt: skip
SPELLINGS = {
    "in memory": ("attn_hc.", "ffn_hc.", "hc_head.hc_", "gate_proj", "gate_proj", "sinks"),
    "published": ("hc_attn_layer.hc_pre.hc_", "hc_mlp_layer.hc_pre.hc_", "hc_head_", "linear_gate", "gate_proj",
                  "learnable_sink_param"),
    "of transformers": ("hc_pre.hc_attn_layer.hc_", "hc_pre.hc_mlp_layer.hc_", "hc_pre.hc_head.hc_head_", "linear_gate",
                        "linear_gate", "learnable_sink_param"),
}  # fmt: skip


def shapes(spelling: str = "in memory", indexed: tuple[int, ...] = (0, 1)) -> Shapes:
    attention, mlp, head, gate, mlp_gate, sinks = SPELLINGS[spelling]
    found = {name.replace("gate_proj", mlp_gate): shape for name, shape in layers(3, indexed=indexed).items()}
    for number in range(3):
        layer = f"model.layers.{number}."
        found |= {f"{layer}self_attn.{gate}.weight": (6, HIDDEN), f"{layer}self_attn.{sinks}": (2,)}
        for part in (attention, mlp):
            found |= {f"{layer}{part}fn": (6, 3 * HIDDEN), f"{layer}{part}base": (6,), f"{layer}{part}scale": (2,)}
    return found | {f"model.{head}fn": (3, 3 * HIDDEN), f"model.{head}base": (3,), f"model.{head}scale": (1,)}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_all_spellings_are_the_same_model(spelling: str) -> None:
    spec = build_spec(view_of(shapes(spelling), CONFIG | {"swiglu_limit": 7.0}))
    assert spec.streams == GatedStreamsSpec(3, 2.0, 1e-3, 1e-5)
    assert all(layer.hyper == spec.streams for layer in spec.layers)
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [mixer.choice_source for mixer in mixers] == [None, None, 1]
    assert all(mixer.output_gate and mixer.has_sinks and not mixer.rope.interleaved for mixer in mixers)
    assert mixers[0].indexer.rotates_last and mixers[0].indexer.k_norm.eps == 1e-5
    assert spec.layers[1].channel_mixer.activation_limit == 7.0
    assert spec.layers[1].channel_mixer.routed_scaling_factor == 2.827


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingTensor, match=r"layers\.1\.self_attn\.indexer"):
        build_spec(view_of(shapes(indexed=(0,)), CONFIG))
    with pytest.raises(MissingTensor, match=r"attn_hc\.fn"):
        build_spec(view_of({name: shape for name, shape in shapes().items() if ".attn_hc." not in name}, CONFIG))


@pytest.mark.parametrize(("key", "value"), [("hc_mult", 4), ("swiglu_limit", 0.0), ("hc_magnitude", 0.0)])
def test_numbers_that_do_not_fit_are_refused(key: str, value: float) -> None:
    with pytest.raises(CheckpointError):
        build_spec(view_of(shapes(), CONFIG | {key: value}))
