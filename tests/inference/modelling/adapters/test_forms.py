"""Adapted modules by themselves: rows that stand there several times, heads, routers, step sizes."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.adapters.deltas import ModuleDelta, Term
from inference.modelling.adapters.forms import ADAPTED, ActiveRows, AdaptedLinear, AdaptedStepProjection
from inference.modelling.adapters.products import DeltaTable
from inference.modelling.forward_batch import AdapterRows
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mamba1 import StepProjection
from inference.modelling.layers.moe import Experts, Router
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec

ROWS = AdapterRows(torch.tensor([0, 1, 2]), (1, 2))


def adapt(module: torch.nn.Module, deltas: dict[int, ModuleDelta]) -> ActiveRows:
    module.__class__ = ADAPTED[type(module)]
    module.active, module.head_deltas, module.deltas = ActiveRows(), None, DeltaTable(2, 1, is_native=False)
    for slot, delta in deltas.items():
        module.deltas.put(slot, delta)
    return module.active


def linear() -> tuple[AdaptedLinear, torch.Tensor, ActiveRows]:
    """A product, and what its first adapter adds to the matrix."""
    module = Linear(6, 8, bias=True)
    module.weight.data, module.bias.data = torch.randn(8, 6), torch.randn(8)
    a, b = torch.randn(2, 6), torch.randn(2, 8)
    active = adapt(module, {1: ModuleDelta([Term(a, b, 0, 2.0)])})
    return module, 2.0 * b.T @ a, active


def test_rows_of_a_slot_change_and_others_do_not() -> None:
    module, change, active = linear()
    hidden = torch.randn(3, 6)
    plain = Linear.forward(module, hidden)
    assert torch.equal(module(hidden), plain)
    active.rows = ROWS
    found = module(hidden)
    torch.testing.assert_close(found[1], plain[1] + change @ hidden[1])
    assert torch.equal(found[[0, 2]], plain[[0, 2]])
    torch.testing.assert_close(module.logits(hidden), found)


@pytest.mark.parametrize("shape", [(3, 4, 6), (4, 3, 6)])
def test_tokens_may_have_several_rows_each_or_stand_in_several_streams(shape: tuple[int, ...]) -> None:
    module, change, active = linear()
    hidden = torch.randn(shape)
    plain = Linear.forward(module, hidden)
    active.rows = ROWS
    found = module(hidden)
    own = (slice(None), 1) if shape[0] == 4 else (1,)
    torch.testing.assert_close(found[own], plain[own] + hidden[own] @ change.T)
    torch.testing.assert_close((found - plain).abs().sum(), (hidden[own] @ change.T).abs().sum())


def test_other_numbers_of_rows_are_a_mistake() -> None:
    module, _, active = linear()
    active.rows = ROWS
    with pytest.raises(ValueError, match="4 rows can't be those of 3 tokens"):
        module(torch.randn(4, 6))


def test_step_sizes_change_before_their_bias() -> None:
    module = StepProjection(3, 5)
    module.weight.data = torch.randn(5, 3)
    offset = torch.randn(5)
    active = adapt(module, {2: ModuleDelta(offset=offset)})
    assert isinstance(module, AdaptedStepProjection)
    active.rows = ROWS
    hidden = torch.randn(3, 3)
    found, plain = module(hidden), StepProjection.forward(module, hidden)
    torch.testing.assert_close(found[2], plain[2] + offset)
    assert torch.equal(found[:2], plain[:2])


def filled(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return module


@pytest.mark.parametrize("norm", [None, NormSpec()])
def test_experts_that_an_adapter_changes_are_weighed_as_the_others(norm: NormSpec | None) -> None:
    experts = filled(Experts(MoESpec(3, 2, 4, expert_norm=norm), 6))
    hidden, chosen = torch.randn(3, 6), torch.tensor([[0, 2], [1, 0], [2, 1]])
    weights = torch.rand(3, 2)
    plain = experts(hidden, weights, chosen)
    term = Term(torch.randn(2, 6), torch.zeros(2, 8), 0, 1.0)
    active = adapt(experts, {1: ModuleDelta([], experts={("gate_up_proj", 0): [term]})})
    active.rows = ROWS
    torch.testing.assert_close(experts(hidden, weights, chosen), plain)


@pytest.mark.parametrize("norm", [None, NormSpec()])
def test_routers_that_an_adapter_changes_read_what_the_others_read(norm: NormSpec | None) -> None:
    router = filled(Router(MoESpec(3, 2, 4, router_norm=norm, router_multiplier=0.3), 6))
    hidden = torch.randn(3, 6)
    plain = router(hidden)
    a, b = torch.randn(2, 6), torch.randn(2, 3)
    active = adapt(router, {1: ModuleDelta([Term(a, b, 0, 2.0)])})
    torch.testing.assert_close(router(hidden), plain)
    active.rows = ROWS
    found = router(hidden)
    torch.testing.assert_close(found[[0, 2]], plain[[0, 2]])
    torch.testing.assert_close(found[1], plain[1] + 2.0 * b.T @ a @ router.entering(hidden)[1])
