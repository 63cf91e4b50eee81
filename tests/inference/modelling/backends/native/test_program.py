"""Recorded calls, run again: the same values, the same changes in place, and a no where that can't be."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch

from inference.modelling.backends.native.program import Program, record


def _scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x + 1) * weight


def program_of(function, *inputs: torch.Tensor) -> Program:
    _, recording = record(lambda: function(*inputs), inputs)
    assert recording.obstacle is None
    return Program(recording)


@torch.inference_mode()
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: torch.cat((x * 2.0, y / 3), 1).relu(),
        lambda x, y: x.chunk(2, 1)[1] - y[:, :2],
        lambda x, y: x.t() @ y.float().to(torch.float64).float(),
        lambda x, y: (x.to(torch.bfloat16) * 0.5).float() + y.mean(-1, keepdim=True),
        lambda x, y: torch.softmax(x, -1).clamp_(min=0.1).mul_(2).add_(y, alpha=0.25),
        lambda x, y: x.sort(dim=1, stable=True, descending=True).indices.float() + torch.zeros(4),
        lambda x, y: torch.where(x > 0, y, -1.0),
    ],
)
def test_another_run_computes_from_its_own_inputs(function) -> None:
    first, others = torch.randn(2, 4, 4), torch.randn(3, 2, 4, 4)
    program = program_of(function, *first)
    for other in others:
        expected = function(*other.clone())
        assert torch.equal(program.run(list(other)), expected)


@torch.inference_mode()
def test_tensors_from_outside_are_held_and_changed_in_place() -> None:
    weight, state = torch.randn(3, 3), torch.zeros(5, 3)

    def step(x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        state.index_add_(0, slots, x)
        return torch.mm(state.index_select(0, slots), weight)

    slots = torch.tensor([1, 4])
    program = program_of(step, torch.ones(2, 3), slots)
    assert torch.equal(program.run([torch.full((2, 3), 2.0), torch.tensor([4, 2])]), state[[4, 2]] @ weight)
    assert state[:, 0].tolist() == [0.0, 1.0, 2.0, 0.0, 3.0]


@torch.inference_mode()
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x + torch.rand(3),
        lambda x: x * float(x.nonzero().shape[0]),
        lambda x: x if bool(x.all()) else -x,
    ],
)
def test_what_depends_on_values_is_no_program(function) -> None:
    _, recording = record(lambda: function(torch.ones(3)), [])
    assert recording.obstacle is not None
    assert not recording.same_as(recording)
    with pytest.raises(ValueError, match=r"depends on values|something else than tensors"):
        Program(recording)


@torch.inference_mode()
def test_two_recordings_tell_constants_from_inputs() -> None:
    weight = torch.randn(3)

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * weight * by

    def recording(x: torch.Tensor, by: float):
        return record(lambda: scaled(x, by), [x])[1]

    one = recording(torch.ones(2, 3), 2.0)
    assert one.same_as(recording(torch.zeros(4, 3), 2.0))
    assert not one.same_as(recording(torch.ones(2, 3), 3.0)), "a number computed from the step"
    fresh = record(lambda: torch.ones(2, 3) * torch.tensor([1.0, 2.0, 3.0]), [])[1]
    again = record(lambda: torch.ones(2, 3) * torch.tensor([1.0, 2.0, 3.0]), [])[1]
    assert not fresh.same_as(again), "a tensor made of Python's numbers"


@torch.inference_mode()
def test_conversions_that_do_nothing_are_left_out() -> None:
    program = program_of(lambda x: x.float().contiguous() + 1, torch.ones(3))
    assert len(program) == 1


@torch.inference_mode()
def test_a_run_frees_what_it_computed() -> None:
    weight = torch.ones(3)
    program = program_of(partial(_scaled, weight=weight), torch.ones(3))
    given = torch.ones(3)
    result = program.run([given])
    storages = [tensor.untyped_storage()._weak_ref() for tensor in (given, result)]
    held = weight.untyped_storage()._weak_ref()
    del given, result, weight
    gc.collect()
    assert all(torch.UntypedStorage._expired(storage) for storage in storages), "the program keeps what it computed"
    assert not torch.UntypedStorage._expired(held)
    assert torch.equal(program.run([torch.ones(3)]), torch.full((3,), 2.0))
    del program
    gc.collect()
    assert torch.UntypedStorage._expired(held), "the weights outlive their program"


@torch.inference_mode()
def test_a_failed_run_says_why_and_the_next_one_works() -> None:
    program = program_of(lambda x: x @ torch.ones(3, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        program.run([torch.ones(2, 4)])
    with pytest.raises(RuntimeError, match="2 inputs instead of 1"):
        program.run([torch.ones(2, 3)] * 2)
    assert program.run([torch.ones(2, 3)]).tolist() == [[3.0] * 3] * 2
