"""Values with evidence, overrides, activations and the eps of a norm."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.config import Confidence
from inference.modelling.families.config_values import (
    activation,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from tests.inference.modelling.families.headers import fact, view_of


def test_a_stated_value_is_certain_and_a_default_is_not() -> None:
    view = view_of({}, {"num_experts_per_tok": 3})
    assert integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2) == 3
    assert fact(view, "moe.top_k") == (3, Confidence.CERTAIN)
    assert number_with_evidence(view, "scale", ("scale",), 1.5, low=0.0, high=2.0) == 1.5
    assert fact(view, "scale") == (1.5, Confidence.LOW)


@pytest.mark.parametrize("value", [0, -1, 2.5, "4", True, None, 1 << 30])
def test_an_override_is_checked_like_a_value(value: object) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"moe\.top_k is set to"):
        integer_with_evidence(view_of({}, overrides={"moe.top_k": value}), "moe.top_k", ("k",), 2)


def test_an_override_wins_over_the_config() -> None:
    view = view_of({}, {"rms_norm_eps": 1e-3}, {"norm.eps": 1e-4})
    assert rms_norm(view).eps == 1e-4
    assert fact(view, "norm.eps") == (1e-4, Confidence.OVERRIDE)


def test_eps_has_a_default_and_other_keys() -> None:
    assert rms_norm(view_of({}), default=1e-5, offset=1.0) == rms_norm(
        view_of({}, {"layer_norm_epsilon": 1e-5}), "layer_norm_epsilon", offset=1.0
    )


@pytest.mark.parametrize(("name", "ours"), [("swish", "silu"), ("gelu_new", "gelu_tanh"), ("relu2", "relu2")])
def test_activations_by_the_names_of_transformers(name: str, ours: str) -> None:
    assert activation(view_of({}, {"hidden_act": name})) == ours


def test_an_unknown_activation_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"hidden_act 'mish' is not a supported activation.*silu"):
        activation(view_of({}, {"hidden_act": "mish"}))
