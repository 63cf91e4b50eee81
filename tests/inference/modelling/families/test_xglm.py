"""XGLM and BioGPT: positions without a table or with one, and the embedding's factor."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.xglm import build_spec
from inference.modelling.specs.positions import SinusoidsSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, WIDTH, Shapes, view_of

XGLM: dict[str, Any] = {"model_type": "xglm", "attention_heads": 4, "d_model": HIDDEN}
BIOGPT: dict[str, Any] = {"model_type": "biogpt", "num_attention_heads": 4}


def shapes(prefix: str) -> Shapes:
    layer = f"{prefix}layers.0."
    found: Shapes = {f"{prefix}embed_tokens.weight": (VOCAB, HIDDEN)}
    for name in ("layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"):
        found |= {f"{prefix}{name}.{leaf}": (HIDDEN,) for leaf in ("weight", "bias")}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"):
        rows, columns = {"fc1": (WIDTH, HIDDEN), "fc2": (HIDDEN, WIDTH)}.get(name, (HIDDEN, HIDDEN))
        found |= {f"{layer}{name}.weight": (rows, columns), f"{layer}{name}.bias": (rows,)}
    return found


def test_xglm_has_sines_in_place_of_a_table() -> None:
    spec = build_spec(view_of(shapes("model."), XGLM))
    assert spec.sinusoids == SinusoidsSpec(steps=HIDDEN // 2 - 1, first=2)
    assert (spec.position_rows, spec.embedding_multiplier, spec.tie_word_embeddings) == (0, 4.0, True)
    assert build_spec(view_of(shapes("model."), XGLM | {"scale_embedding": False})).embedding_multiplier == 1.0
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes("model."), XGLM | {"d_model": 32}))
    assert caught.value.param == "d_model"


def test_biogpt_has_a_table_whose_first_rows_are_unused() -> None:
    made = shapes("biogpt.") | {"biogpt.embed_positions.weight": (66, HIDDEN)}
    spec = build_spec(view_of(made, BIOGPT))
    assert (spec.sinusoids, spec.position_rows) == (None, 64)
    stored = made | {"output_projection.weight": (VOCAB, HIDDEN)}
    copied = build_spec(view_of(stored, BIOGPT))
    assert copied == spec, "a tied head that is stored is left out"
    own = build_spec(view_of(stored, BIOGPT | {"tie_word_embeddings": False}))
    assert own.parameters["lm_head.weight"].pieces[0].name == "output_projection.weight"
