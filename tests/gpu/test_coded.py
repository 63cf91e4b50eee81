"""Weights in the codes of files on the device: the values of the reference, and products that expand them inside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from inference.modelling.backends import backend as kernels
from inference.modelling.layers.coded import Codes, PlainStore, code_plainly
from inference.modelling.quantisation import FACTOR_INPUTS, GGUF_FORMS, OWN_FORMS, Form, coded_bytes
from tests.gpu.compare import assert_close, experts_reference

FORMS = {
    **{name: GGUF_FORMS[name] for name in ("Q4_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL")},
    **{name: OWN_FORMS[name] for name in ("int2", "int3")},
    "float8": Form(8, 128, scales="bfloat16", is_float=True),
    "8 bits with offsets": Form(8, 64, zero=128, has_offset=True),
}


def both_forms(shape, form, device):
    """Random codes in the device's form and in the reference's."""
    from inference.modelling.backends.triton.coded import DeviceStore, level_values

    *outer, inputs = shape
    groups = -(-inputs // form.group)
    reach = max(abs(level) for level in level_values(form) if level == level)  # two codes of float8 are NaN
    scales = (torch.rand(*outer, groups) * 2 / reach).to(getattr(torch, form.scales))
    offsets = torch.randn(*outer, groups).to(scales.dtype) if form.has_offset else None
    factors = None
    if form.has_factors:  # the scales are whole numbers, the products about as large as others'
        scales, offsets = (None if part is None else (part * 32).round() for part in (scales * reach, offsets))
        sizes = torch.tensor([1 / reach, 1.0][: 2 if form.has_offset else 1]) / 32
        factors = ((0.5 + torch.rand(*outer, -(-inputs // FACTOR_INPUTS), len(sizes))) * sizes).half()
    numbers = torch.randint(0, 127 if form.is_float else 1 << form.bits, shape)
    codes = Codes(numbers.to(torch.uint8), scales, offsets, form, factors=factors)
    store = DeviceStore(PlainStore(shape, form, device))
    rows = codes.flat
    half = len(rows.codes) // 2  # they come in pieces, in any order
    for begin, end in ((half, len(rows.codes)), (0, half)):
        parts = {name: getattr(rows, name) for name in ("codes", "scales", "offsets", "factors")}
        moved = {name: None if part is None else part[begin:end].to(device) for name, part in parts.items()}
        store.put(replace(rows, **moved), begin)
    return store.packed, code_plainly(codes)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("shape", [(5, 320), (3, 4, 48), (2, 96)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_those_of_the_reference(form, shape, dtype, device):
    packed, plain = both_forms(shape, form, device)
    assert packed.shape == shape
    assert packed.nbytes == plain.nbytes == coded_bytes(shape, form)
    results = [(packed.dense(dtype), plain.dense(dtype))]
    if len(shape) == 3:
        results.append((packed.matrix(1).dense(dtype), plain.dense(dtype)[1]))
    else:
        ids = torch.randint(0, shape[0], (7,))
        results.append((packed.rows(ids.to(device), dtype), plain.rows(ids, dtype)))
    for found, wanted in results:
        if kernels.INTERPRETED and dtype != torch.bfloat16:  # which cuts off bfloat16 instead of rounding
            assert torch.equal(found.cpu(), wanted)
        else:
            assert_close(found, wanted, dtype)  # a device may add the offset before it rounds the product


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(("rows", "shape"), [(1, (33, 96)), (5, (70, 320)), (17, (7, 160)), (65, (40, 48))], ids=str)
def test_products(rows, shape, form, dtype, device):
    outputs, inputs = shape
    packed, plain = both_forms(shape, form, device)
    hidden = torch.randn(rows, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if rows % 5 else None
    moved = None if bias is None else bias.to(device)
    wanted = functional.linear(hidden.double(), plain.dense(torch.float64), None if bias is None else bias.double())
    found, wide = packed.linear(hidden.to(device), moved), packed.wide_linear(hidden.to(device), moved)
    assert (found.dtype, wide.dtype) == (dtype, torch.float32)
    for result in (found, wide):
        assert_close(result, wanted, dtype)


def test_rows_that_do_not_lie_together(device):
    packed, plain = both_forms((40, 64), GGUF_FORMS["Q4_K"], device)
    hidden = torch.randn(64, 3).t()
    assert_close(packed.linear(hidden.to(device), None), hidden @ plain.dense(torch.float32).t(), torch.float32)
    assert packed.linear(torch.empty(0, 64, device=device), None).shape == (0, 40)


@pytest.mark.parametrize("form", [*(GGUF_FORMS[name] for name in ("Q2_K", "Q4_K", "Q6_K")), OWN_FORMS["int3"]], ids=str)
@pytest.mark.parametrize(("rows", "gated", "activation"), [(1, True, "silu"), (30, False, "relu2")])
def test_experts(rows, gated, activation, form, dtype, device):
    from inference.modelling.backends.triton.moe import run_experts

    experts, top_k, width, inner = 4, 2, 96, 64
    first, plain_first = both_forms((experts, (2 if gated else 1) * inner, width), form, device)
    down, plain_down = both_forms((experts, width, inner), form, device)
    hidden = torch.randn(rows, width).to(dtype) / 8
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)])
    weights = torch.rand(rows, top_k)
    found = run_experts(
        *(part.to(device) for part in (hidden, weights, chosen)), first, down, gated=gated, activation=activation
    )
    stacks = (plain.dense(torch.float32) for plain in (plain_first, plain_down))
    assert_close(found, experts_reference(hidden, weights, chosen, *stacks, activation=activation, gated=gated), dtype)
