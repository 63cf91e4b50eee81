"""Products with codes as a file has them, against float64, and the independence of rows; run with both variants."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.modelling.backends.native.packing import NativePacked, NativeStore
from inference.modelling.layers.coded import Codes, CodeSink, code_plainly
from inference.modelling.quantisation import GGUF_FORMS, Form
from tests.inference.modelling.backends.native.test_packing import as_quantised, away_from_ties, random, steps_of
from tests.inference.modelling.layers.test_coded import FLOATS, FORMS, random_codes

SHAPES = [(33, 64), (70, 544), (32, 1100)]


def unit_of(form: Form) -> int:
    """Inputs whose activations share a scale."""
    unit = 128 if form.bits >= 6 else 32
    while form.group % unit:
        unit //= 2
    return unit


def packed_codes(weight: Codes) -> NativePacked:
    store = NativeStore(weight.codes.shape, weight.form)
    store.put(weight.flat, 0)
    return store.packed


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_against_float64(form, outputs, inputs):
    weight = random_codes(outputs, inputs, form=form)
    packed, plain = packed_codes(weight), code_plainly(weight)
    dense = plain.dense(torch.float32)
    torch.testing.assert_close(packed.dense(torch.float32), dense, rtol=1e-6, atol=1e-7)
    ids = torch.tensor([outputs - 1, 0, 7])
    assert torch.equal(packed.rows(ids, torch.bfloat16), packed.dense(torch.bfloat16)[ids])
    unit, steps = unit_of(form), steps_of(packed)
    for rows in (1, 2, 3, 9, 40):
        hidden = away_from_ties(random(rows, inputs, seed=rows), unit, steps)
        bias = random(outputs, seed=2)
        expected = as_quantised(hidden, unit, steps) @ dense.double().T
        limit = 3e-6 * (hidden.double().abs() @ dense.double().abs().T).max()
        torch.testing.assert_close(packed.linear(hidden, None).double(), expected, rtol=3e-6, atol=limit)
        torch.testing.assert_close(packed.wide_linear(hidden, bias).double(), expected + bias, rtol=3e-6, atol=limit)
    loss = (packed.linear(hidden, None) - hidden @ dense.T).norm() / (hidden @ dense.T).norm()
    assert loss < (1e-4 if steps > 127 else 1e-2)  # what rounding the activations costs


@pytest.mark.parametrize("form", [*FLOATS, Form(8, 1120, is_float=True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES, (600, 577)])
def test_products_of_floats_against_float64(form, dtype, outputs, inputs):
    """Neither their values nor the activations are rounded."""
    weight = random_codes(outputs, inputs, form=form)
    packed, plain = packed_codes(weight), code_plainly(weight)
    assert torch.equal(packed.dense(dtype), plain.dense(dtype))
    dense, bias = plain.dense(torch.float32).double(), random(outputs, seed=2).to(dtype)
    for rows in (1, 2, 3, 9, 40, 300):
        hidden = random(rows, inputs, seed=rows).to(dtype)
        expected = hidden.double() @ dense.T
        limit = 3e-6 * (hidden.double().abs() @ dense.abs().T).max()
        torch.testing.assert_close(packed.wide_linear(hidden, None).double(), expected, rtol=3e-6, atol=limit)
        found = packed.linear(hidden, bias)
        assert torch.equal(found, (packed.wide_linear(hidden, None) + bias.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_odd_number_of_inputs_reads_nothing_of_the_next_row(dtype):
    packed = packed_codes(random_codes(70, 577, form=FLOATS[0]))
    hidden = random(3, 577, seed=1).to(dtype)
    hidden[1:] = torch.nan
    assert torch.equal(packed.linear(hidden, None)[0], packed.linear(hidden[:1].clone(), None)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_float_has_its_value(dtype):
    """Subnormal ones, and both zeros."""
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    weight = Codes(codes[:, None].repeat(1, 2), torch.full((254, 1), 256.0), None, FLOATS[0])
    found = packed_codes(weight).linear(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype), None)
    assert torch.equal(found, codes.view(torch.float8_e4m3fn).to(dtype).expand(2, -1))


@pytest.mark.parametrize("form", (*FORMS, *FLOATS), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_in_any_batch(form, dtype):
    packed = packed_codes(random_codes(70, 544, form=form))
    hidden = random(300, 544, seed=1).to(dtype)
    alone = torch.cat([packed.linear(row, None) for row in hidden.split(1)])
    for rows in (2, 5, 13, 40, 241, 300):
        assert torch.equal(packed.linear(hidden[:rows], None), alone[:rows]), rows
    places, values = packed.argmax(hidden, None, None)
    wide = packed.wide_linear(hidden, None)
    assert torch.equal(values, wide.amax(-1))
    assert torch.equal(wide.gather(1, places[:, None])[:, 0], values)


@pytest.mark.parametrize("form", (*FORMS, *FLOATS), ids=str)
def test_rows_come_in_pieces_of_any_order(form):
    weight = random_codes(100, 160, form=form)
    whole, store = packed_codes(weight), NativeStore((100, 160), form)
    sink = CodeSink([(100, store)])
    for begin, end in ((64, 100), (0, 32), (32, 64)):
        offsets, factors = (None if part is None else part[begin:end] for part in (weight.offsets, weight.factors))
        codes, scales = weight.codes[begin:end], weight.scales[begin:end]
        sink.take(Codes(codes, scales, offsets, form, factors=factors), begin)
    assert sink.packed is store.packed
    assert torch.equal(store.packed.dense(torch.float32), whole.dense(torch.float32))


def test_a_stack_is_packed_matrix_by_matrix():
    for form in (*FORMS[:3], GGUF_FORMS["Q2_K"], GGUF_FORMS["Q3_K"], *FLOATS):
        weight = random_codes(3, 64, 96, form=form)
        packed, plain = packed_codes(weight), code_plainly(weight)
        for number in range(3):
            found, expected = packed.matrix(number).dense(torch.float32), plain.matrix(number).dense(torch.float32)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_extreme_activations_stay_in_their_rows():
    form = Form(4, 32, has_offset=True)
    packed = packed_codes(random_codes(40, 64, form=form))
    hidden = random(3, 64)
    hidden[1, 3] = torch.nan
    found = packed.linear(hidden, None)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], packed.linear(hidden[[0, 2]], None))
    assert torch.equal(packed.linear(torch.zeros(1, 64), None), torch.zeros(1, 40))


def test_wrong_forms_and_codes_are_refused():
    ops = torch.ops.blazr
    with pytest.raises(RuntimeError, match="codes of 7 bits"):
        ops.add_form(7, [], 0, False, True)
    with pytest.raises(RuntimeError, match="a level for each"):
        ops.add_form(4, [1, 2], 0, False, True)
    with pytest.raises(RuntimeError, match="floats have 8 bits"):
        ops.add_form(6, [], 0, False, True, True)
    with pytest.raises(RuntimeError, match="a level of 200"):
        ops.add_form(2, [1, 2, 3, 200], 0, False, True)
    store = NativeStore((40, 64), Form(8, 32, zero=128))
    weight = random_codes(40, 64, form=Form(8, 32, zero=128))
    with pytest.raises(RuntimeError, match="no place"):
        store.put(weight, 32)
    with pytest.raises(RuntimeError, match="scales"):
        store.put(Codes(weight.codes, weight.scales[:, :1], None, weight.form), 0)
    with pytest.raises(RuntimeError, match="factors are float16"):
        ops.add_form(8, [], 0, False, False, False, True)
    factored = random_codes(40, 512, form=GGUF_FORMS["Q3_K"])
    with pytest.raises(RuntimeError, match="the factors don't fit"):
        NativeStore((40, 512), factored.form).put(replace(factored, factors=factored.factors[:, :1]), 0)
    with pytest.raises(RuntimeError, match="bytes are needed"):
        store.put(Codes(weight.codes.int(), weight.scales, None, weight.form), 0)
    with pytest.raises(RuntimeError, match="int8 or int4"):
        packed = store.packed
        ops.pack_rows(random(32, 64), packed.data, packed.scales, 0, packed.format, packed.group)
