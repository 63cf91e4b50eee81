"""DiffLlama: factors by layer, and heads that come in halves."""

from __future__ import annotations

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.diffllama import build_spec
from tests.inference.modelling.families.headers import Shapes, llama, view_of

CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2}


def shapes(width: int = 4) -> Shapes:
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    return llama(2) | {f"model.layers.{at}.self_attn.{name}": (width,) for at in range(2) for name in names}


def test_the_factor_falls_from_layer_to_layer() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    starts = [layer.token_mixer.difference.start for layer in spec.layers]
    assert starts == [pytest.approx(0.2), pytest.approx(0.8 - 0.6 * 0.7408182)]
    assert spec.layers[0].token_mixer.difference.norm.weightless
    assert [piece.name.rpartition("_")[2] for piece in spec.parameters["layers.1.token_mixer.lambdas"].pieces] == [
        "q1", "k1", "q2", "k2",
    ]  # fmt: skip


def test_an_odd_number_of_key_value_heads_is_refused() -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        build_spec(view_of(shapes(8), {"num_attention_heads": 2, "num_key_value_heads": 1}))
    assert caught.value.param == "num_key_value_heads"
