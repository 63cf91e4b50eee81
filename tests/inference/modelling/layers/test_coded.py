"""Codes in plain PyTorch: packed and unpacked, expanded by hand, joined."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from inference.modelling.layers import coded
from inference.modelling.layers.coded import (
    Codes,
    CodeSink,
    JoinedRows,
    PermutedInputs,
    PlainStore,
    code_plainly,
    pack_planes,
    packed_rows,
    quantise_to_codes,
    quantised_rows,
    rounded_to_form,
    unpack_planes,
)
from inference.modelling.quantisation import (
    FACTOR_INPUTS,
    GGUF_FORMS,
    OWN_FORMS,
    PLANES,
    Form,
    FormName,
    coded_bytes,
)
from tests.inference.modelling.encodings.formats import e4m3

FORMS = (
    *GGUF_FORMS.values(), Form(3, 32, zero=4), Form(3, 64, levels=tuple(range(-4, 4))),
    Form(4, 128, zero=3, scales="bfloat16"), *OWN_FORMS.values(), Form(5, 16, zero=16),
    Form(3, 48, zero=4, has_offset=True), Form(4, 64, zero=8, has_offset=True, has_factors=True),
)  # fmt: skip
FLOATS = (Form(8, 128, is_float=True), Form(8, 32, scales="bfloat16", is_float=True), Form(8, 48, is_float=True))


def random_codes(*shape: int, form: Form, seed: int = 0) -> Codes:
    """Codes, scales and offsets of any values, or whole numbers of them and factors."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-shape[-1] // form.group)
    codes = torch.randint(0, 1 << form.bits, shape, dtype=torch.uint8, generator=generator)
    if form.is_float:
        codes[codes & 0x7F == 0x7F] = 0x80  # NaN
    if form.has_factors:
        kinds = form.num_scales
        whole = torch.randint(-128, 128, (kinds, *shape[:-1], groups), generator=generator).float()
        factors = torch.randn(*shape[:-1], -(-shape[-1] // FACTOR_INPUTS), kinds, generator=generator).half() * 1e-3
        return Codes(codes, whole[0], whole[1] if form.has_offset else None, form, factors=factors)
    scales, offsets = torch.randn(2, *shape[:-1], groups, generator=generator).half().bfloat16().float().unbind()
    return Codes(codes, scales * 0.01, offsets * 0.1 if form.has_offset else None, form)


@pytest.mark.parametrize("bits", PLANES)
@pytest.mark.parametrize("inputs", [1, 7, 32, 100])
def test_codes_survive_packing(bits, inputs):
    codes = torch.randint(0, 1 << bits, (3, 5, inputs), dtype=torch.uint8)
    planes = pack_planes(codes, bits)
    assert planes.shape[-1] == sum(-(-inputs * width // 8) for width in PLANES[bits])
    assert torch.equal(unpack_planes(planes, bits, inputs), codes)


@settings(deadline=None)
@given(st.sampled_from(sorted(PLANES)), st.lists(st.integers(1, 5), max_size=2), st.integers(1, 300), st.randoms())
def test_any_shape_survives_packing(bits, outer, inputs, randoms):
    generator = torch.Generator().manual_seed(randoms.randrange(1 << 30))
    codes = torch.randint(0, 1 << bits, (*outer, inputs), dtype=torch.uint8, generator=generator)
    assert torch.equal(unpack_planes(pack_planes(codes, bits), bits, inputs), codes)


@settings(deadline=None)
@given(st.sampled_from(sorted(OWN_FORMS)), st.lists(st.integers(1, 4), min_size=1, max_size=2), st.integers(1, 300))
def test_rows_of_any_shape_are_the_nearest_values_and_read_back_equal(name, outer, inputs):
    """Also where the last group is short, and where the codes of a row end within a byte."""
    weight = torch.randn(*outer, inputs, generator=torch.Generator().manual_seed(inputs))
    codes, scales = quantised_rows(weight, name)
    assert codes.nbytes + scales.nbytes == coded_bytes(weight.shape, OWN_FORMS[name])
    assert scales.dtype == torch.bfloat16
    found = packed_rows(codes, scales, name, inputs).dense(torch.float32)
    if name in ("int4", "int8"):
        return  # test_packed.py
    assert torch.equal(found, rounded_to_form(weight, OWN_FORMS[name]))
    assert torch.equal(found, quantise_to_codes(weight, OWN_FORMS[name]).dense(torch.float32))


@pytest.mark.parametrize("name", OWN_FORMS)
def test_more_bits_lose_less(name: FormName) -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3))
    codes, scales = quantised_rows(weight, name)
    loss = (packed_rows(codes, scales, name, 1024).dense(torch.float32) - weight).square().mean()
    assert loss < 3.5 * 4.0 ** -OWN_FORMS[name].bits
    assert loss > 0.5 * 4.0 ** -OWN_FORMS[name].bits


def test_pieces_change_nothing(monkeypatch):
    weight = torch.randn(2, 10, 72)
    whole = rounded_to_form(weight, OWN_FORMS["int3"])
    monkeypatch.setattr(coded, "CHUNK_VALUES", 100)
    assert torch.equal(rounded_to_form(weight, OWN_FORMS["int3"]), whole)
    assert rounded_to_form(weight.bfloat16(), OWN_FORMS["int3"]).dtype == torch.bfloat16


def test_fields_lie_lowest_first():
    codes = torch.tensor([1, 2, 3, 4, 5, 6, 7, 16 + 8], dtype=torch.uint8)
    assert pack_planes(codes, 5).tolist() == [0x21, 0x43, 0x65, 0x87, 0b10000000]


@pytest.mark.parametrize("form", FORMS)
def test_values_are_scale_times_level_plus_offset(form):
    weight = random_codes(3, 300, form=form)
    packed = code_plainly(weight)
    kept, dense = packed.codes().without_factors(), packed.dense(torch.float32)
    for row, column in [(0, 0), (1, 15), (2, 33), (1, 69), (2, 299)]:
        code, group = int(weight.codes[row, column]), column // form.group
        level = form.levels[code] if form.levels else code - form.zero
        value = torch.tensor(level, dtype=torch.float32) * kept.scales[row, group].float()
        if kept.offsets is not None:
            value = value + kept.offsets[row, group].float()
        assert dense[row, column] == value
        if weight.factors is not None:
            factor = weight.factors[row, column // FACTOR_INPUTS].float()
            assert kept.scales[row, group] == weight.scales[row, group] * factor[0]
            assert kept.offsets is None or kept.offsets[row, group] == weight.offsets[row, group] * factor[1]
    assert packed.nbytes == coded_bytes((3, 300), form)
    assert coded_bytes((4, 768), form) == 4 * 768 * form.bits_per_weight / 8


@pytest.mark.parametrize("form", FLOATS)
def test_floats_of_8_bits_are_a_sign_an_exponent_and_a_mantissa(form):
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8).expand(2, -1)
    scales = torch.tensor([[3.0], [-0.25]]).expand(-1, -(-254 // form.group))
    dense = code_plainly(Codes(codes, scales, None, form)).dense(torch.float32)
    values = torch.from_numpy(e4m3(codes.numpy()))
    assert torch.equal(dense, values / 256 * scales[:, :1])
    assert coded_bytes((4, 96), form) == 4 * (96 + 2 * -(-96 // form.group))


def test_columns_of_another_order_get_their_inputs():
    weight = random_codes(40, 96, form=GGUF_FORMS["Q4_1"])
    order, hidden = torch.randperm(96), torch.randn(2, 3, 96)
    sink = CodeSink([(64, PlainStore((64, 96), weight.form)), (40, PlainStore((40, 96), weight.form))])
    sink.take(random_codes(64, 96, form=weight.form, seed=1), 0)
    sink.take(dataclasses.replace(weight, order=order), 64)
    plain, permuted = sink.packed.parts
    assert not isinstance(plain, PermutedInputs)
    dense = code_plainly(weight).dense(torch.float32)[:, torch.argsort(order)]
    torch.testing.assert_close(permuted.linear(hidden, None), hidden @ dense.T)
    assert permuted.wide_linear(hidden.bfloat16(), None).dtype == torch.float32
    assert permuted.is_quantised
    assert permuted.nbytes == coded_bytes((40, 96), weight.form) + 96 * 8


def test_products_rows_and_stacks_come_from_the_dense_matrix():
    form = GGUF_FORMS["Q5_1"]
    stack = code_plainly(random_codes(2, 40, 64, form=form))
    matrix = stack.matrix(1)
    dense = matrix.dense(torch.float32)
    assert torch.equal(dense, stack.dense(torch.float32)[1])
    hidden, bias = torch.randn(3, 64), torch.randn(40)
    assert torch.equal(matrix.linear(hidden, bias), functional.linear(hidden, dense, bias))
    assert matrix.wide_linear(hidden.bfloat16(), None).dtype == torch.float32
    assert torch.equal(matrix.rows(torch.tensor([7, 0]), torch.float32), dense[[7, 0]])
    assert matrix.is_quantised
    assert matrix.nbytes * 2 == stack.nbytes


def test_rows_of_several_forms_make_one_product():
    parts = tuple(
        code_plainly(random_codes(rows, 64, form=GGUF_FORMS[name])) for rows, name in [(8, "Q4_K"), (5, "Q8_0")]
    )
    joined = JoinedRows(parts, (8, 5))
    dense = torch.cat([part.dense(torch.float32) for part in parts])
    hidden, bias = torch.randn(3, 64), torch.randn(13)
    assert torch.allclose(joined.linear(hidden, bias), functional.linear(hidden, dense, bias), atol=1e-5)
    assert torch.allclose(joined.wide_linear(hidden, None), functional.linear(hidden, dense), atol=1e-5)
    assert joined.nbytes == sum(part.nbytes for part in parts)
    assert joined.is_quantised


def test_a_form_says_what_it_can_not_be():
    for change in (
        {"bits": 7}, {"group": 24}, {"levels": (1, 2)}, {"has_factors": True, "group": 48},
        {"has_factors": True, "scales": "bfloat16"}, {"has_factors": True, "bits": 8, "is_float": True},
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            dataclasses.replace(Form(4, 32), **change)
