"""Quantised weights in plain PyTorch: their rounding, and the four ways to read them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.layers.packed import empty_parameter, output_bits, quantise_plainly
from inference.modelling.quantisation import GROUP_SIZES, INT4_LEVELS


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "steps"), [("int8", 127), ("int4", 8)])
@pytest.mark.parametrize("shape", [(5, 300), (3, 4, 45)])
def test_values_are_at_most_a_step_off(kind, steps, shape):
    exact = weight(*shape)
    packed = quantise_plainly(exact, kind)
    assert packed.is_quantised and packed.inputs == shape[-1]
    assert packed.nbytes == packed.values.nbytes + packed.scales.nbytes
    size = GROUP_SIZES[kind]
    for start in range(0, shape[-1], size):
        group = exact[..., start : start + size]
        error = (packed.dense(torch.float32)[..., start : start + size] - group).abs().amax(-1)
        assert (error <= 1.2 * group.abs().amax(-1) / steps).all()


def test_int4_keeps_weights_that_lie_on_its_levels():
    levels = torch.tensor(INT4_LEVELS).repeat(5, 4) * torch.tensor([[0.5], [-0.25], [2.0], [1.0], [-8.0]])
    assert torch.equal(quantise_plainly(levels, "int4").dense(torch.float32), levels)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_and_rows_are_those_of_the_dense_matrix(kind):
    packed = quantise_plainly(weight(6, 77), kind)
    dense = packed.dense(torch.float32)
    hidden, bias = weight(3, 77), torch.arange(6.0)
    torch.testing.assert_close(packed.linear(hidden, bias), functional.linear(hidden, dense, bias))
    assert packed.wide_linear(hidden.bfloat16(), None).dtype == torch.float32
    assert torch.equal(packed.rows(torch.tensor([4, 0]), torch.float32), dense[[4, 0]])


def test_a_matrix_of_a_stack_is_that_matrix():
    packed = quantise_plainly(weight(3, 4, 64), "int4")
    assert torch.equal(packed.matrix(2).dense(torch.float32), packed.dense(torch.float32)[2])


def test_a_group_of_zeros_stays_zero():
    for kind in GROUP_SIZES:
        assert not quantise_plainly(torch.zeros(2, 128), kind).dense(torch.float32).any()


def test_output_bits_has_a_bit_for_each_output():
    bits = output_bits([0, 31, 33, 69], 70)
    assert bits is not None and bits.dtype == torch.int32 and bits.shape == (3,)
    found = [at for at in range(96) if int(bits[at // 32]) >> at % 32 & 1]
    assert found == [0, 31, 33, 69]
    assert output_bits([], 70) is None


def test_an_empty_parameter_keeps_the_dtype():
    parameter = empty_parameter(torch.bfloat16, "cpu")
    assert parameter.numel() == 0 and parameter.dtype == torch.bfloat16 and not parameter.requires_grad
