"""Counting experts, sources of their parameters, and routing that can be computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.checks import source_shape
from inference.modelling.families.moe_config import (
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
    shared_width,
)
from inference.modelling.specs.layers import MoESpec
from tests.inference.modelling.families.headers import HIDDEN, experts, fact, mlp, view_of

SPEC = MoESpec(num_experts=4, top_k=2, intermediate_size=8)


def test_experts_are_counted_one_by_one_and_stacked() -> None:
    assert count_experts(view_of(experts("e.")), "e.") == (4, 8)
    assert count_experts(view_of({"e.down_proj": (3, HIDDEN, 5)}), "e.") == (3, 5)


def test_missing_and_flat_experts_are_refused() -> None:
    with pytest.raises(MissingTensor, match=r"no experts: neither e\.down_proj nor"):
        count_experts(view_of({}), "e.")
    shapes = experts("e.")
    del shapes["e.1.down_proj.weight"]
    with pytest.raises(MissingTensor, match=r"tensor e\.1\.down_proj\.weight is missing"):
        count_experts(view_of(shapes), "e.")
    with pytest.raises(TensorShapeMismatch, match="three axes"):
        count_experts(view_of({"e.down_proj": (3, HIDDEN)}), "e.")


@pytest.mark.parametrize("stacked", [False, True])
def test_sources_give_the_shapes_of_the_spec(stacked: bool) -> None:
    spec = replace(SPEC, shared_intermediate_size=6, shared_gate=True)
    shapes = {"mlp.gate.weight": (4, HIDDEN), "mlp.shared_expert_gate.weight": (1, HIDDEN)}
    shapes |= mlp("mlp.shared_expert.", 6)
    if stacked:
        shapes |= {"mlp.experts.gate_up_proj": (4, 16, HIDDEN), "mlp.experts.down_proj": (4, HIDDEN, 8)}
    else:
        shapes |= experts("mlp.experts.")
    view = view_of(shapes)
    sources = moe_sources(view, spec, "mlp.")
    found = {name: source_shape(source, view.tensors) for name, source in sources.items()}
    assert found == spec.parameter_shapes(HIDDEN)
    assert shared_width(view, "mlp.shared_expert.") == 6
    assert shared_width(view, "mlp.other.") == 0


@pytest.mark.parametrize(("key", "found"), [("num_experts", 4), ("moe_intermediate_size", 8)])
def test_experts_that_contradict_the_config_are_refused(key: str, found: int) -> None:
    view = view_of({}, {key: 9})
    with pytest.raises(TensorShapeMismatch, match=rf"says {key} 9, but the tensors have {found} \(.*mlp\.experts\)"):
        check_experts(view, "mlp.experts.", 4, 8, ("num_experts",), "moe_intermediate_size")
    view = view_of({}, {"num_experts": 4, "moe_intermediate_size": 8})
    check_experts(view, "mlp.experts.", 4, 8, ("num_experts",), "moe_intermediate_size")
    assert fact(view, "moe.num_experts")[0] == 4


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"top_k": 5}, "num_experts_per_tok"),
        ({"num_expert_groups": 3}, "n_group"),
        ({"num_expert_groups": 2, "top_k_groups": 3}, "n_group"),
        ({"num_expert_groups": 2, "top_k_groups": 1, "top_k": 3}, "topk_group"),
        ({"num_expert_groups": 4, "top_k_groups": 4, "group_score": "top2"}, "n_group"),
    ],
)
def test_impossible_routing_is_refused_by_key(changes: dict, param: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        check_routing(replace(SPEC, **changes))
    assert caught.value.param == param


def test_possible_routing_passes() -> None:
    assert check_routing(SPEC) is SPEC
