"""xLSTM: sizes from shapes, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, TensorShapeMismatch
from inference.modelling.families.xlstm import build_spec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.linear import MLSTMSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, WIDTH, norms, view_of


def shapes() -> dict:
    """Two heads: keys of 4, values of 8."""
    layer, base = "backbone.blocks.0.", "backbone.blocks.0.mlstm_layer."
    rows = {"q": 8, "k": 8, "v": 16, "ogate_preact": 16, "igate_preact": 2, "fgate_preact": 2}
    found = {f"{base}{name}.weight": (count, HIDDEN) for name, count in rows.items()}
    found |= {f"{base}{name}.bias": (2,) for name in ("igate_preact", "fgate_preact")}
    found |= {f"{base}multihead_norm.weight": (16,), f"{base}out_proj.weight": (HIDDEN, 16)}
    found |= {f"{layer}ffn.{name}.weight": (WIDTH, HIDDEN) for name in ("proj_up_gate", "proj_up")}
    found |= {f"{layer}ffn.proj_down.weight": (HIDDEN, WIDTH)} | norms(layer, "norm_mlstm", "norm_ffn")
    outer = {"backbone.embeddings.weight": (VOCAB, HIDDEN), "backbone.out_norm.weight": (HIDDEN,)}
    return found | outer | {"lm_head.weight": (VOCAB, HIDDEN)}


def test_sizes_come_from_the_shapes() -> None:
    spec = build_spec(view_of(shapes(), {"gate_soft_cap": 7.0, "eps": 1e-4, "norm_eps": 1e-3}))
    assert spec.layers[0].token_mixer == MLSTMSpec(2, 4, 8, 7.0, 1e-3, 1e-4)
    assert spec.layers[0].channel_mixer == MLPSpec(WIDTH)
    assert (spec.logits_softcap, spec.final_norm.eps) == (30.0, 1e-3)


@pytest.mark.parametrize(
    "change", [{"num_heads": 4}, {"qk_dim_factor": 1.0}, {"v_dim_factor": 0.5}, {"num_blocks": 2}, {"embedding_dim": 8}]
)
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        build_spec(view_of(shapes(), change))


def test_heads_that_do_not_divide_the_widths_are_refused() -> None:
    base = "backbone.blocks.0.mlstm_layer."
    found = shapes() | {f"{base}{name}.bias": (3,) for name in ("igate_preact", "fgate_preact")}
    with pytest.raises(TensorShapeMismatch, match="3 heads"):
        build_spec(view_of(found, {}))
