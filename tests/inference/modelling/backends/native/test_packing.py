"""Products with packed weights against float64 and integer references, and the independence of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.backends.native.library import matrix_tiles
from inference.modelling.backends.native.packing import (
    BLOCK_ROWS,
    NativePacked,
    PackedRows,
    arrange_codes,
    can_stream,
    pack_native,
)
from inference.modelling.layers.packed import output_bits, quantise_plainly
from inference.modelling.quantisation import GROUP_SIZES, INT4_LEVELS, Kind

SHAPES = [(32, 64), (33, 17), (1, 5), (100, 576), (65, 1100), (17, 2052), (600, 577)]
ROWS = (1, 2, 3, 7, 8, 9, 13, 25, 40)
FORMS = [
    ("int8", torch.float32),
    ("int8", torch.bfloat16),
    ("int4", torch.float32),
    ("int4", torch.bfloat16),
    ("bfloat16", torch.bfloat16),
    ("float32", torch.float32),
]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def steps_of(packed: NativePacked) -> float:
    """Of activations on each side of 0: 16 bits for int8, and everywhere if no bytes are multiplied; else bytes."""
    steps: int = torch.ops.blazr.activation_steps(packed.format)
    assert steps in (127, 127 * 256)
    return float(steps)


def test_activations_of_int8_have_16_bits() -> None:
    assert steps_of(pack_native(random(32, 128), "int8")) == 127 * 256


def as_quantised(rows: torch.Tensor, group: int, steps: float) -> torch.Tensor:
    """The rows as the kernel sees them: whole steps per row and group, in float32 as there; returned in float64."""
    rows = rows.float()
    found = torch.zeros_like(rows, dtype=torch.float64)
    for start in range(0, rows.shape[1], group):
        part = rows[:, start : start + group]
        greatest = part.abs().amax(1, keepdim=True)
        limit = torch.full_like(greatest, steps)
        nothing = greatest < 1e-30
        inverse = torch.where(nothing, 0.0, limit / greatest)
        step = torch.where(nothing, 0.0, greatest / limit)
        found[:, start : start + group] = torch.round(part * inverse).double() * step.double()
    return found


def away_from_ties(rows: torch.Tensor, group: int, steps: float) -> torch.Tensor:
    """The rows without values that lie half-way between two steps: which one they round to depends on the processor.

    A processor with fused multiply-add rounds the exact product, one without rounds it twice.
    """
    kept = rows.clone()
    for start in range(0, rows.shape[1], group):
        part = rows[:, start : start + group].double()
        whole = part * steps / part.abs().amax(1, keepdim=True)
        kept[:, start : start + group][((whole - whole.floor()) - 0.5).abs() < 1e-6 * steps] = 0
    return kept


def exact(packed: NativePacked, form: str, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    seen = as_quantised(rows, packed.group, steps_of(packed)) if form in GROUP_SIZES else rows.double()
    product = seen @ packed.dense(torch.float32).double().T
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize(("form", "dtype"), FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_product_against_float64(form: str, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    packed = pack_native(random(outputs, inputs, scale=inputs**-0.5).to(dtype), form)
    bias = random(outputs, seed=2).to(dtype)
    for rows in ROWS:
        hidden = random(rows, inputs, seed=rows).to(dtype)
        if form in GROUP_SIZES:
            hidden = away_from_ties(hidden, packed.group, steps_of(packed))
        for b in (bias, None):
            expected = exact(packed, form, hidden, b)
            tolerance = 2**-7 if dtype == torch.bfloat16 else 3e-6
            torch.testing.assert_close(
                packed.linear(hidden, b).double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max()
            )


@pytest.mark.parametrize(("form", "dtype"), FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 576), (300, 1100), (33, 5)])
def test_a_row_is_the_same_in_any_batch(form: str, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    packed = pack_native(random(outputs, inputs).to(dtype), form)
    hidden = random(521, inputs, seed=1).to(dtype)
    alone = torch.cat([packed.linear(row, None) for row in hidden.split(1)])
    for rows in (2, 5, 12, 13, 40, 241, 521):
        assert torch.equal(packed.linear(hidden[:rows], None), alone[:rows]), rows
    assert torch.equal(packed.linear(hidden.view(1, 521, inputs)[:, 100:140], None)[0], alone[100:140])


@pytest.mark.parametrize(("form", "dtype"), FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 5), (33, 17), (700, 96), (2100, 64)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_greatest_output_against_all_of_them(
    form: str, dtype: torch.dtype, outputs: int, inputs: int, has_bias: bool
) -> None:
    packed = pack_native(random(outputs, inputs).to(dtype), form)
    bias = random(outputs, seed=2).to(dtype) if has_bias else None
    for rows in (1, 2, 13, 32, 300):
        hidden = random(rows, inputs, seed=rows).to(dtype)
        hidden[rows // 2] = 0  # equals everywhere, unless there is a bias
        all_of_them = packed.wide_linear(hidden, bias)
        for masked in ([], [0, outputs - 1], list(range(outputs // 2)), list(range(outputs))):
            expected = all_of_them.clone()
            expected[:, masked] = -torch.inf
            places, values = packed.argmax(hidden, bias, output_bits(masked, outputs))
            assert torch.equal(values, expected.amax(-1))
            assert torch.equal(places, (expected == values.unsqueeze(1)).int().argmax(-1))


def test_greatest_output_of_rows_that_are_no_numbers() -> None:
    packed = pack_native(random(100, 64), "float32")
    hidden = random(5, 64, seed=1)
    hidden[1, 3], hidden[3] = torch.nan, torch.inf
    places, values = packed.argmax(hidden, None, None)
    plain_places, plain_values = torch.ops.blazr.row_maxima(packed.wide_linear(hidden, None))
    assert torch.equal(places, plain_places)
    assert torch.equal(values.nan_to_num(7.0), plain_values.nan_to_num(7.0))
    assert values.isfinite().tolist() == [True, False, True, False, True]
    with pytest.raises(RuntimeError, match="for each 32 outputs"):
        packed.argmax(hidden, None, torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize(("form", "dtype"), [(form, dtype) for form, dtype in FORMS if form != "float32"])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (100, 576), (33, 2048), (600, 1536), (40, 96), (64, 80)])
@pytest.mark.usefixtures("tiles")
def test_matrix_tiles_and_vectors_agree(form: str, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    packed = pack_native(random(outputs, inputs, scale=inputs**-0.5).to(dtype), form)
    hidden = random(300, inputs, seed=1).to(dtype)
    for rows in (1, 3, 4, 15, 16, 17, 31, 32, 33, 47, 64, 255, 256, 257, 300):
        tiled = packed.wide_linear(hidden[:rows], None)
        with matrix_tiles(False):
            plain = packed.wide_linear(hidden[:rows], None)
        if form == "bfloat16":  # another order of sums, both in float32: a few roundings of the largest of them
            torch.testing.assert_close(tiled, plain, rtol=0, atol=2e-6 * float(plain.abs().max()) * inputs**0.5)
        else:
            assert torch.equal(tiled, plain), rows


@pytest.mark.parametrize(("form", "dtype"), FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 17), (600, 577), (1056, 1536)])
def test_the_order_in_which_weights_are_asked_for_changes_nothing(
    form: str, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    packed = pack_native(random(outputs, inputs, scale=inputs**-0.5).to(dtype), form)
    hidden = random(70, inputs, seed=1).to(dtype)
    before = torch.ops.blazr.read_in_pages(False)
    try:
        plain = [packed.linear(hidden[:rows], None) for rows in (1, 3, 8, 12, 32, 70)]
        assert torch.ops.blazr.read_in_pages(True) is False
        for expected in plain:
            assert torch.equal(packed.linear(hidden[: len(expected)], None), expected)
    finally:
        assert torch.ops.blazr.read_in_pages(before) is True


@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_matrix_tiles_keep_rows_apart(form: str) -> None:
    """What isn't a number in one row reaches no other row of its tile."""
    packed = pack_native(random(70, 576).bfloat16(), form)
    hidden = random(37, 576, seed=1).bfloat16()
    expected = packed.linear(hidden, None)
    hidden[5, 3], hidden[20, 100], hidden[36, 575] = torch.nan, torch.inf, -torch.inf
    found = packed.linear(hidden, None)
    broken = torch.tensor([row in (5, 20, 36) for row in range(37)])
    assert not found[broken].isfinite().any()
    assert torch.equal(found[~broken], expected[~broken])


@pytest.mark.parametrize(("form", "dtype"), FORMS)
def test_products_in_turn_have_their_own_rows(form: str, dtype: torch.dtype) -> None:
    """Each thread keeps the memory of the rows that it packed for a great matrix; the next product packs its own."""
    packed = pack_native(random(70 * torch.get_num_threads() * 4, 96).to(dtype), form)
    batches = [random(rows, 96, seed=rows).to(dtype) for rows in (13, 5, 13, 40, 1)]
    expected = [packed.linear(hidden.repeat(300, 1), None)[: len(hidden)] for hidden in batches]
    for _ in range(3):
        for hidden, rows in zip(batches, expected, strict=True):
            assert torch.equal(packed.linear(hidden, None), rows)
            assert torch.equal(packed.wide_linear(hidden, None).to(dtype), rows)
            hidden.neg_()  # the same memory with other values
            assert torch.equal(packed.linear(hidden, None), -rows)
            hidden.neg_()


@pytest.mark.parametrize(("kind", "levels"), [("int8", tuple(range(-127, 128))), ("int4", INT4_LEVELS)])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 150), st.integers(1, 14), st.integers(0, 1000))
def test_integers_are_multiplied_exactly(
    kind: str, levels: tuple[int, ...], outputs: int, pairs: int, rows: int, seed: int
) -> None:
    generator, inputs = torch.Generator().manual_seed(seed), 2 * pairs
    weight = torch.tensor(levels)[torch.randint(len(levels), (outputs, inputs), generator=generator)]
    hidden = torch.randint(-127, 128, (rows, inputs), generator=generator)
    group = GROUP_SIZES[kind]
    # With both ends in every group the scales are powers of two.
    for start in range(0, inputs, group):
        weight[:, start], weight[:, start + 1], hidden[:, start] = levels[0], levels[-1], 127
    packed = pack_native(weight.float(), kind)
    assert torch.equal(packed.dense(torch.float32), weight.float())
    assert torch.equal(packed.linear(hidden.float(), None), (hidden @ weight.T).float())


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 300), (7, 1), (33, 63)])
def test_native_and_plain_quantisation_agree(kind: str, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight = random(outputs, inputs, scale=0.1).to(dtype)
    weight[1, :20] = 0
    weight[2, 0] = 40.0
    native, plain = pack_native(weight, kind), quantise_plainly(weight, kind)
    assert plain.dense(torch.float32).shape == weight.shape
    different = native.dense(torch.float32) != plain.dense(torch.float32)
    # Two int4 scales may have all but the same error, and sums are made in another order.
    assert different.float().mean() < (0.02 if kind == "int4" else 1e-9)
    ids = torch.tensor([3, 0, outputs - 1])
    assert torch.equal(native.rows(ids, dtype), native.dense(dtype)[ids])
    assert torch.equal(plain.rows(ids, dtype), plain.dense(dtype)[ids])


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.008), ("int4", 0.09)])
def test_error_of_normal_weights(kind: str, error: float) -> None:
    weight = random(64, 1024)
    assert (pack_native(weight, kind).dense(torch.float32) - weight).norm() < error * weight.norm()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_extreme_values(kind: str) -> None:
    weight = random(40, 256)
    packed = pack_native(weight, kind)
    zeros = torch.zeros(3, 256)
    assert torch.equal(packed.linear(zeros, None), torch.zeros(3, 40))
    tiny, huge = torch.full((1, 256), 1e-38), torch.full((1, 256), 1e30)
    assert packed.linear(tiny, None).abs().max() == 0
    assert packed.linear(huge, None).isfinite().all()
    outlier = random(1, 256)
    outlier[0, 3] = 1e4
    torch.testing.assert_close(
        packed.linear(outlier, None).double(), exact(packed, kind, outlier, None), rtol=1e-6, atol=1e-6
    )
    # What isn't a number stays visible, in its own row only.
    broken = random(4, 256)
    broken[1, 7], broken[2, 200] = torch.nan, torch.inf
    found = packed.linear(broken, None)
    assert not found[1].isfinite().any()
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 3]], packed.linear(broken[[0, 3]], None))


def test_int8_keeps_small_activations_beside_a_great_one() -> None:
    packed = pack_native(random(64, 256), "int8")
    hidden = random(1, 256, seed=1)
    hidden[0, 5] = 100.0
    expected = hidden.double() @ packed.dense(torch.float32).double().T
    assert (packed.linear(hidden, None).double() - expected).norm() < 1e-3 * expected.norm()


def test_a_stack_is_packed_matrix_by_matrix() -> None:
    stack = random(3, 40, 70)
    for form in ("int8", "int4", "float32"):
        packed = pack_native(stack, form)
        for number in range(3):
            assert torch.equal(packed.matrix(number).data, pack_native(stack[number], form).data)
            assert torch.equal(packed.matrix(number).scales, pack_native(stack[number], form).scales)


def test_wrong_calls_are_refused() -> None:
    ops = torch.ops.blazr
    packed = pack_native(random(40, 64), "int8")
    x = random(2, 64)
    with pytest.raises(RuntimeError, match="not those of"):
        ops.packed_linear(random(2, 68), packed.data, packed.scales, None, 0, 40, 128)
    with pytest.raises(RuntimeError, match="not those of"):
        ops.packed_linear(x, packed.data, packed.scales, None, 0, 72, 128)
    with pytest.raises(RuntimeError, match="scales"):
        ops.packed_linear(x, packed.data, packed.scales, None, 0, 40, 32)
    with pytest.raises(RuntimeError, match="a group of"):
        ops.packed_linear(x, packed.data, packed.scales, None, 0, 40, 0)
    with pytest.raises(RuntimeError, match="scales"):
        ops.packed_linear(x, packed.data, None, None, 0, 40, 128)
    with pytest.raises(RuntimeError, match="bias"):
        packed.linear(x, torch.zeros(39))
    with pytest.raises(RuntimeError, match="format"):
        ops.packed_linear(x, packed.data, packed.scales, None, 900, 40, 128)
    with pytest.raises(RuntimeError, match="own dtype"):
        pack_native(random(40, 64).bfloat16(), "bfloat16").linear(x, None)
    with pytest.raises(RuntimeError, match="row 40 of 40"):
        packed.rows(torch.tensor([40]), torch.float32)
    assert packed.linear(x[:0], None).shape == (0, 40)


@pytest.mark.parametrize("form", ["int8", "int4", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(200, 300), (3, 64, 96)])
def test_rows_packed_as_they_come_are_the_packed_matrix(form: str, shape: tuple[int, ...]) -> None:
    stored = torch.float32 if form == "float32" else torch.bfloat16
    weight = random(*shape, scale=0.1).to(stored)
    whole = pack_native(weight, form)
    rows = PackedRows(shape, form, stored)
    assert rows.piece_bytes % (BLOCK_ROWS * shape[-1] * stored.itemsize) == 0
    flat = weight.view(torch.uint8).flatten()
    step = 2 * BLOCK_ROWS * shape[-1] * stored.itemsize
    for begin in reversed(range(0, len(flat), step)):
        rows.take(flat[begin : begin + step], begin)
    assert torch.equal(rows.packed.data, whole.data)
    assert torch.equal(rows.packed.scales.view(torch.int16), whole.scales.view(torch.int16))


def test_rows_without_a_place_are_refused() -> None:
    rows = PackedRows((64, 32), "int8", torch.float32)
    values = torch.zeros(64 * 32, dtype=torch.float32).view(torch.uint8)
    for begin in (32 * 32 * 4, 16 * 32 * 4):  # beyond the end; within a block
        with pytest.raises(RuntimeError, match="no place"):
            rows.take(values, begin)


def test_what_can_be_packed_as_it_comes() -> None:
    assert can_stream((96, 8), [(32, 8), (64, 8)])
    assert can_stream((70, 8), [(32, 8), (38, 8)]), "the last block may be a part"
    assert not can_stream((70, 8), [(38, 8), (32, 8)])
    assert can_stream((2, 64, 8), [(32, 8)] * 4)
    assert not can_stream((2, 40, 8), [(40, 8)] * 2)
    assert not can_stream((64, 8), [(64, 4), (64, 4)])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("shape", [(64, 96), (33, 40), (100, 256), (3, 64, 48), (2, 40, 130)])
def test_codes_in_rows_keep_their_values(kind: Kind, shape: tuple[int, ...]) -> None:
    plain = quantise_plainly(random(*shape, scale=0.1), kind)
    arranged = arrange_codes(plain)
    empty = pack_native(torch.zeros(shape), kind)
    assert (arranged.data.shape, arranged.scales.shape) == (empty.data.shape, empty.scales.shape)
    matrices = [(arranged, plain)]
    if len(shape) == 3:
        matrices = [(arranged.matrix(number), plain.matrix(number)) for number in range(shape[0])]
    hidden = random(3, shape[-1])
    for found, expected in matrices:
        assert torch.equal(found.dense(torch.float32), expected.dense(torch.float32))
        difference = found.linear(hidden, None) - expected.linear(hidden, None)
        assert float(difference.norm() / expected.linear(hidden, None).norm()) < 0.02, "activations are rounded"
