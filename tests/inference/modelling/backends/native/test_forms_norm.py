"""Norms and gated activations against PyTorch in float64."""

import pytest
import torch
from torch.nn import functional

TOLERANCE = {torch.float32: {"rtol": 2e-6, "atol": 2e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-6}}
ACTIVATIONS = {
    0: functional.silu,
    1: lambda x: functional.gelu(x, approximate="tanh"),
    2: functional.relu,
    3: lambda x: functional.relu(x).square(),
    4: functional.gelu,
}


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float) -> torch.Tensor:
    return torch.ops.blazr.norm(x, weight, None, eps, offset, False)


def values(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 576, 2050])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(width: int, dtype: torch.dtype, offset: float) -> None:
    x, weight = values(5, width, dtype=dtype), values(width, dtype=dtype, seed=1)
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * (weight.double() + offset)
    got = rms_norm(x, weight, 1e-5, offset)
    torch.testing.assert_close(got, expected.to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 576, 2050])
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_norm(width: int, dtype: torch.dtype, has_bias: bool) -> None:
    x = values(5, width, dtype=dtype) + 7  # far from zero: the mean has to go first
    weight, bias = values(width, dtype=dtype, seed=1), values(width, dtype=dtype, seed=2)
    given = bias if has_bias else None
    expected = functional.layer_norm(x.double(), (width,), weight.double(), bias.double() * has_bias, 1e-5)
    got = torch.ops.blazr.norm(x, weight, given, 1e-5, 0.0, True)
    tolerance = TOLERANCE[dtype] if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got, expected.to(dtype), **tolerance)


def test_weight_and_bias_of_two_dtypes_are_refused() -> None:
    x, weight = values(2, 8, dtype=torch.bfloat16), values(8, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="two dtypes"):
        torch.ops.blazr.norm(x, weight, weight.bfloat16(), 1e-5, 0.0, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float32_weight_and_none(dtype: torch.dtype) -> None:
    x = values(3, 40, dtype=dtype)
    weight = values(40, dtype=torch.float32, seed=2)
    plain = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(rms_norm(x, None, 1e-6, 0.0), plain.to(dtype), **TOLERANCE[dtype])
    torch.testing.assert_close(rms_norm(x, weight, 1e-6, 0.0), (plain * weight.double()).to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_is_added_in_place(dtype: torch.dtype) -> None:
    hidden, mixed, weight = (values(4, 70, dtype=dtype, seed=seed) for seed in (0, 1, 2))
    expected = (hidden.float() + mixed.float() * 0.5).to(dtype)
    weight = weight[0].contiguous()
    normed = torch.ops.blazr.add_norm(hidden, mixed, 0.5, weight, None, 1e-5, 0.0, False)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=0)
    torch.testing.assert_close(normed, rms_norm(expected, weight, 1e-5, 0.0), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("width", [3, 16, 100])
def test_gated_activation(kind: int, width: int, dtype: torch.dtype) -> None:
    joint = values(6, 2 * width, dtype=dtype)
    gate, up = joint.double().chunk(2, -1)
    got = torch.ops.blazr.gated_activation(joint, kind)
    torch.testing.assert_close(got, (ACTIVATIONS[kind](gate) * up).to(dtype), **TOLERANCE[dtype])


def test_extreme_activations_stay_finite() -> None:
    joint = torch.tensor([[-1e30, -200.0, -88.0, 88.0, 200.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    for kind in (0, 1):
        got = torch.ops.blazr.gated_activation(joint, kind)
        torch.testing.assert_close(got, torch.tensor([[0.0, 0.0, 0.0, 88.0, 200.0, 1e30]]), rtol=1e-6, atol=1e-30)


def test_a_row_is_the_same_in_any_batch() -> None:
    x, weight = values(600, 576, dtype=torch.float32), values(576, dtype=torch.float32, seed=1)
    together = rms_norm(x, weight, 1e-5, 0.0)
    alone = torch.cat([rms_norm(row, weight, 1e-5, 0.0) for row in x.split(1)])
    assert torch.equal(together, alone)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(RuntimeError, match="float32 or bfloat16"):
        rms_norm(torch.ones(1, 4, dtype=torch.float16), None, 1e-5, 0.0)
