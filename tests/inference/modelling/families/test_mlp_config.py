"""MLPs of checkpoints: gated or not, under other names, stored the other way round."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.mlp_config import MLPNames, mlp_sources, mlp_spec
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, mlp, view_of


def test_gate_and_up_lie_apart_or_together() -> None:
    apart = view_of(mlp("l.mlp."))
    assert len(mlp_sources(apart, mlp_spec(apart, "l.", "silu"), "l.")["gate_up_proj.weight"].pieces) == 2
    shapes = {"l.mlp.gate_up_proj.weight": (2 * WIDTH, HIDDEN), "l.mlp.down_proj.weight": (HIDDEN, WIDTH)}
    together = view_of(shapes)
    assert len(mlp_sources(together, mlp_spec(together, "l.", "silu"), "l.")["gate_up_proj.weight"].pieces) == 1


def test_matrices_stored_inputs_first_are_turned_and_their_biases_are_not() -> None:
    names = MLPNames(up="a", down="b", is_transposed=True)
    shapes = {"l.a.weight": (HIDDEN, WIDTH), "l.b.weight": (WIDTH, HIDDEN), "l.a.bias": (WIDTH,), "l.b.bias": (HIDDEN,)}
    view = view_of(shapes)
    spec = mlp_spec(view, "l.", "gelu", mlp="", gated=False, names=names)
    assert (spec.intermediate_size, spec.bias, spec.gated) == (WIDTH, True, False)
    sources = mlp_sources(view, spec, "l.", mlp="", names=names)
    turned = {leaf for leaf, source in sources.items() if source.pieces[0].transpose}
    assert turned == {"up_proj.weight", "down_proj.weight"}
    assert sources.keys() == turned | {"up_proj.bias", "down_proj.bias"}


def test_another_width_than_config_json_states_is_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match="intermediate_size 99"):
        mlp_spec(view_of(mlp("l.mlp."), {"intermediate_size": 99}), "l.", "silu")
