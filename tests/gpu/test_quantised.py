"""Quantised weights on the device: the values of the reference, and products that expand them inside."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.backends import backend as kernels
from inference.modelling.layers.packed import quantise_plainly
from inference.modelling.quantisation import quantised_bytes
from tests.gpu.compare import assert_close, experts_reference


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "width", "inner", "activation", "gated"),
    [(1, 3, 2, 160, 40, "silu", True), (30, 4, 2, 40, 72, "relu2", False), (40, 1, 1, 33, 45, "silu", True)],
)
def test_quantised_experts(rows, experts, top_k, width, inner, activation, gated, kind, dtype, device):
    from inference.modelling.backends.triton.moe import run_experts

    hidden = torch.randn(rows, width).to(dtype)
    first = torch.randn(experts, (2 if gated else 1) * inner, width) * width**-0.5
    down = torch.randn(experts, width, inner) * inner**-0.5
    (first, plain_first), (down, plain_down) = (both_forms(stack, kind, device) for stack in (first, down))
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)])
    weights = torch.rand(rows, top_k)
    found = run_experts(
        *(part.to(device) for part in (hidden, weights, chosen)), first, down, gated=gated, activation=activation
    )
    wanted = experts_reference(hidden, weights, chosen, plain_first, plain_down, activation=activation, gated=gated)
    assert_close(found, wanted, dtype)


def test_one_stack_of_experts_may_stay_as_it_is(device):
    """A side below 32 keeps one of the two matrices plain."""
    from inference.modelling.backends.triton.moe import run_experts

    hidden, first, down = torch.randn(3, 64), torch.randn(4, 40, 64), torch.randn(4, 64, 20)
    quantised, plain = both_forms(first, "int8", device)
    chosen, weights = torch.tensor([[0], [3], [0]]), torch.ones(3, 1)
    found = run_experts(
        *(part.to(device) for part in (hidden, weights, chosen)), quantised, down.to(device),
        gated=True, activation="silu",
    )  # fmt: skip
    wanted = experts_reference(hidden, weights, chosen, plain, down, activation="silu", gated=True)
    assert_close(found, wanted, torch.float32)


def both_forms(weight, kind, device):
    """The device's form, and its values in float64. Those that the device itself quantises have a test of their own."""
    from inference.modelling.backends.triton.quantised import arrange_for_device

    plain = quantise_plainly(weight, kind)
    return arrange_for_device(plain.to(device)), plain.dense(torch.float64)


SHAPES = [(40, 512), (1, 32), (33, 96), (7, 160), (16, 45)]
LARGE = (130, 384)
"""Outputs and inputs: whole groups and broken ones, of 128 and of 32, and inputs that fill no chunk. The interpreter
takes seconds for the large one, which it does in float32."""


def crossed(shapes, *dtypes):
    """All pairs; the large shape with the first dtypes alone where there is no device."""
    for shape in (*shapes, LARGE):
        for number, dtype in enumerate(dtypes):
            yield pytest.param(
                shape,
                *dtype,
                marks=pytest.mark.device_only if number and shape == LARGE else (),
                id=f"{shape}-{dtype[-1]}",
            )


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("shape", "stored", "dtype"),
    list(
        crossed(
            [*SHAPES, (3, 5, 72)],
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.float32, torch.float16),
        )
    ),
)
def test_quantised_values_are_those_of_the_reference(kind, shape, stored, dtype, device, monkeypatch):
    """To the bit, whatever the pieces that a matrix is quantised in."""
    from inference.modelling.backends.triton import quantised

    weight = torch.randn(shape).to(stored)
    weight[..., 0, : shape[-1] // 2] = 0
    plain = quantise_plainly(weight, kind)
    monkeypatch.setattr(quantised, "PIECE_VALUES", 3 * shape[-1] + 1)
    found = quantised.quantise_for_device(weight.to(device), kind)
    assert found.shape == shape
    results = [(found.dense(dtype), plain.dense(dtype))]
    if len(shape) == 3:
        results.append((found.matrix(1).dense(dtype), plain.dense(dtype)[1]))
    else:
        ids = torch.randint(0, shape[0], (9,))
        results.append((found.rows(ids.to(device), dtype), plain.rows(ids, dtype)))
    for values, wanted in results:
        if kernels.INTERPRETED and dtype == torch.bfloat16:  # which cuts off instead of rounding there
            assert_close(values, wanted, dtype)
        else:
            assert torch.equal(values.cpu(), wanted)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("shape", [(33, 160), (3, 5, 72)], ids=str)
def test_codes_in_rows_keep_their_values(kind, shape, device):
    from inference.modelling.backends.triton.quantised import arrange_for_device, quantise_for_device

    weight = torch.randn(shape)
    found = arrange_for_device(quantise_plainly(weight, kind).to(device))
    whole = quantise_for_device(weight.to(device), kind)
    assert torch.equal(found.words, whole.words)
    assert torch.equal(found.scales, whole.scales)


@pytest.mark.parametrize(("kind", "columns"), [("int8", 640), ("int4", 640), ("int8", 400), ("int4", 416)])
def test_the_bytes_are_the_planned_ones(kind, columns, device):
    from inference.modelling.backends.triton.quantised import quantise_for_device

    assert quantise_for_device(torch.randn(5, columns, device=device), kind).nbytes == quantised_bytes(
        (5, columns), kind
    )


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        *((rows, (33, 96)) for rows in (2, 16, 17, 33, 64, 65)),
        (2, (1, 32)),
        (5, (7, 160)),
        (9, (16, 45)),
        (2, (70, 320)),
    ],
    ids=str,
)
def test_product_of_rows(rows, shape, kind, dtype, device):
    outputs, inputs = shape
    packed, plain = both_forms(torch.randn(shape), kind, device)
    hidden = torch.randn(rows, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if rows % 2 else None
    moved = None if bias is None else bias.to(device)
    wanted = functional.linear(hidden.double(), plain, None if bias is None else bias.double())
    found = packed.linear(hidden.to(device), moved)
    assert found.dtype == dtype
    assert_close(found, wanted, dtype)
    wide = packed.wide_linear(hidden.to(device), moved)
    assert wide.dtype == torch.float32
    assert_close(wide, wanted, dtype)  # the weights have the rows' type


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    list(crossed([*SHAPES, (5, 1100)], (torch.float32,), (torch.float16,), (torch.bfloat16,))),
)
def test_product_of_one_row(shape, kind, dtype, device):
    """No matrix instructions here, so the interpreter can do it in bfloat16."""
    outputs, inputs = shape
    packed, plain = both_forms(torch.randn(shape), kind, device)
    hidden = torch.randn(1, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if outputs % 2 else None
    moved = None if bias is None else bias.to(device)
    wanted = functional.linear(hidden.double(), plain, None if bias is None else bias.double())
    found = packed.linear(hidden.to(device), moved)
    assert found.dtype == dtype
    assert_close(found, wanted, dtype)
    # Neither weights nor sums are rounded on the way.
    assert_close(packed.wide_linear(hidden.to(device), moved), wanted, torch.float32)


def test_rows_of_a_product_may_lie_apart(device):
    packed, plain = both_forms(torch.randn(20, 64), "int4", device)
    wider = torch.randn(3, 4, 100)
    found = packed.linear(wider.to(device)[..., 3:67], None)
    assert_close(found, wider[..., 3:67].double() @ plain.t(), torch.float32)
    turned = torch.randn(64, 3)
    assert_close(packed.linear(turned.to(device).t(), None), turned.t().double() @ plain.t(), torch.float32)
    assert packed.linear(wider.to(device)[:0, :, :64], None).shape == (0, 4, 20)
