"""Kept codes of every format against the values of its writer: over shapes, groups, bits and signs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import CorruptCheckpoint
from inference.modelling.layers.coded import code_plainly
from inference.modelling.quantisation import FP4_CODES, Form, stored_form
from inference.modelling.weights.decoding.decode import decode
from inference.modelling.weights.decoding.kept_codes import kept_codes
from tests.inference.modelling.encodings import formats
from tests.inference.modelling.encodings.formats import FORMATS, Made
from tests.inference.modelling.weights.decoding.values import read

ROUNDING = 2.0**-10
"""Of a scale and an offset in float16, against the largest magnitude."""
TABLE = 6e-3
"""Of NF4's values in bytes, alike: the worst of sixteen."""
AFFINE = Form(4, 32, zero=8, has_offset=True)
FORMS: dict[str, Form | None] = {
    **{f"gptq-{bits}": Form(bits, 32, zero=1 << bits - 1, has_offset=True) for bits in (2, 3, 4, 8)},
    "gptq-act-order": AFFINE,
    "gptq-v2": AFFINE,
    "gptq-no-g_idx": AFFINE,
    **{f"gptq-symmetric-{bits}": Form(bits, 32, zero=1 << bits - 1) for bits in (3, 4)},
    "gptq-v2-symmetric": Form(4, 32, zero=8),
    "gptq-g_idx-of-zeros": AFFINE,
    "gptq-rows": Form(4, 192, zero=8, has_offset=True),
    "awq": AFFINE,
    "compressed-w4a16": Form(4, 32, zero=8, scales="bfloat16"),
    "compressed-w4-asymmetric": AFFINE,
    "compressed-w4-ordered": Form(4, 32, zero=8, scales="bfloat16"),
    "compressed-w8a16": Form(8, 192, zero=128, scales="bfloat16"),
    "compressed-w3": Form(3, 32, zero=4, has_offset=True),
    "compressed-w3-old": Form(3, 32, zero=4, has_offset=True),
    "compressed-w8a8": Form(8, 192, zero=128),
    "compressed-w8-asymmetric": Form(8, 192, zero=128, has_offset=True),
    "compressed-nvfp4": Form(4, 16, levels=FP4_CODES),
    **dict.fromkeys(("compressed-mxfp4", "mxfp4-deepseek-v4"), Form(4, 32, levels=FP4_CODES, scales="bfloat16")),
    "modelopt-nvfp4": Form(4, 16, levels=FP4_CODES),
    "bnb-int8": Form(8, 192, zero=128),
    **{f"hqq-{bits}": Form(bits, 64, zero=1 << bits - 1, has_offset=True) for bits in (2, 3, 4, 8)},
    "hqq-columns": None,
    "hqq-seen-as-float16": Form(4, 64, zero=8, has_offset=True),
    "hqq-3-seen-as-bfloat16": Form(3, 64, zero=4, has_offset=True),
    **dict.fromkeys(("fp8-blocks", "compressed-fp8-blocks"), Form(8, 48, is_float=True)),
    **dict.fromkeys(("fp8-blocks-ue8m0", "fp8-blocks-deepseek-v4"), Form(8, 48, scales="bfloat16", is_float=True)),
    **dict.fromkeys(("compressed-mxfp8", "modelopt-mxfp8", "mxfp8"), Form(8, 32, scales="bfloat16", is_float=True)),
    "modelopt-fp8-blocks": Form(8, 128, is_float=True),
    **dict.fromkeys(
        ("fbgemm", "compressed-fp8-tensor", "compressed-fp8-rows", "modelopt-fp8", "modelopt-fp8-rows"),
        Form(8, 192, is_float=True),
    ),
}
"""Of matrices (96, 192); the levels of bitsandbytes' types are looked at in test_byte_levels.py."""
EXACT = (
    "compressed-w4a16",
    "compressed-w8a16",
    "compressed-mxfp4",
    "mxfp4-deepseek-v4",
    "fp8-blocks-ue8m0",
    "fp8-blocks-deepseek-v4",
    "compressed-mxfp8",
    "modelopt-mxfp8",
    "mxfp8",
)


def check(made: Made, config: object, cut: int = 0, share: float = ROUNDING) -> None:
    """Compare the values of kept codes, in two pieces, with the writer's and the decoded ones."""
    item, parts = read(made, config)
    form = stored_form(item)
    assert form is not None
    rows = [(begin, end) for begin, end in ((0, cut), (cut, item.shape[0])) if begin < end]
    pieces = [kept_codes(item, form, parts, *pair) for pair in rows]
    found = torch.cat([code_plainly(piece).dense(torch.float32) for piece in pieces])
    orders = [piece.order for piece in pieces if piece.order is not None]
    assert len(orders) == len(pieces) * item.is_permuted
    for order in orders[:1]:
        assert torch.equal(orders[-1], order)
        found = found[:, torch.argsort(order)]
    largest = float(np.abs(made[1]).max())
    torch.testing.assert_close(found, torch.from_numpy(made[1]), rtol=0, atol=share * largest)
    torch.testing.assert_close(found, decode(item, parts), rtol=0, atol=share * largest)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_form_that_holds_it(name: str) -> None:
    form = FORMATS[name]
    made = form.make(np.random.default_rng(1), 96, 192)
    found = stored_form(read(made, form.config)[0])
    if name.startswith(("nf4", "fp4")):
        assert found is not None
        assert (found.bits, found.group, len(found.levels)) == (4, 64, 16)
    else:
        assert found == FORMS[name]
    if found is not None:
        check(made, form.config, 33, 1e-6 if name in EXACT else TABLE if found.levels else ROUNDING)


def packed_config(bits: int, group: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}


def turned(made: Made, sign: int) -> Made:
    """The same with scales of the other sign."""
    scales = ("scales", "scale", "weight_scale", "SCB", "weight.absmax")
    tensors = {leaf: part * sign if leaf in scales and sign < 0 else part for leaf, part in made[0].items()}
    return tensors, made[1] * np.float32(sign)


@settings(max_examples=80, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]), group=st.sampled_from([32, 64, 96, 128, -1]), outputs=st.integers(1, 3),
    inputs=st.integers(1, 5), seed=st.integers(0, 99), cut=st.integers(0, 96), sign=st.sampled_from([1, -1]),
)  # fmt: skip
def test_gptq_of_any_shape(bits: int, group: int, outputs: int, inputs: int, seed: int, cut: int, sign: int) -> None:
    shape = (32 * outputs, 64 * inputs)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group}
    check(turned(formats.gptq(np.random.default_rng(seed), *shape, bits=bits, group=group), sign), config, cut)


@settings(max_examples=40, deadline=None)
@given(
    group=st.sampled_from([16, 32, 48, 128]), outputs=st.integers(1, 6), inputs=st.integers(1, 9),
    seed=st.integers(0, 99), cut=st.integers(0, 48), sign=st.sampled_from([1, -1]),
)  # fmt: skip
def test_awq_of_any_shape(group: int, outputs: int, inputs: int, seed: int, cut: int, sign: int) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": group}
    made = formats.awq(np.random.default_rng(seed), 8 * outputs, 48 * inputs, group=group)
    check(turned(made, sign), config, cut)


@settings(max_examples=80, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]), group=st.sampled_from([32, 64, 96]), outputs=st.integers(1, 40),
    inputs=st.integers(1, 200), symmetric=st.booleans(), seed=st.integers(0, 99), sign=st.sampled_from([1, -1]),
)  # fmt: skip
def test_packed_integers_of_any_shape(
    bits: int, group: int, outputs: int, inputs: int, symmetric: bool, seed: int, sign: int
) -> None:
    made = formats.packed(np.random.default_rng(seed), outputs, inputs, bits=bits, group=group, symmetric=symmetric)
    check(turned(made, sign), packed_config(bits, group), outputs // 2)


@settings(max_examples=80, deadline=None)
@given(
    make=st.sampled_from(
        [
            *(partial(formats.hqq, bits=bits, group=group) for bits in (2, 3, 4, 8) for group in (32, 64)),
            *(partial(formats.bnb4, kind=kind, nested=nested) for kind in ("nf4", "fp4") for nested in (False, True)),
            formats.mxfp4, formats.nvfp4, formats.int8, formats.bnb8, partial(formats.int8, asymmetric=True),
            *(partial(formats.fp8, **how) for how in ({}, {"rows": True}, {"block": (128, 128)}, {"block": (1, 32)})),
        ]
    ),
    outputs=st.integers(1, 40), inputs=st.integers(1, 5), seed=st.integers(0, 99), sign=st.sampled_from([1, -1]),
)  # fmt: skip
def test_the_others_of_any_shape(make: Any, outputs: int, inputs: int, seed: int, sign: int) -> None:
    made = make(np.random.default_rng(seed), outputs * 8, inputs * 64)
    is_turned = any(leaf in made[0] for leaf in ("scale", "SCB"))
    is_table = "weight.quant_map" in made[0]
    check(turned(made, sign) if is_turned else made, None, outputs, TABLE if is_table else ROUNDING)


def test_groups_that_no_product_takes_have_no_form() -> None:
    rng = np.random.default_rng(2)
    for made, config in [
        (formats.gptq(rng, 32, 64, group=8), {"quant_method": "gptq", "bits": 4, "group_size": 8}),
        (formats.gptq(rng, 32, 96, bits=3, group=24), {"quant_method": "gptq", "bits": 3, "group_size": 24}),
        (formats.packed(rng, 32, 64, bits=7), packed_config(7, 32)),
        (formats.bnb4(rng, 32, 96), {"quant_method": "bitsandbytes"}),  # blocks of 64 run on
        (formats.hqq(rng, 32, 96, bits=4), None),
        (formats.hqq(rng, 32, 64, bits=1), None),
    ]:
        assert stored_form(read(made, config)[0]) is None


def test_a_table_of_zeros_is_expanded() -> None:
    tensors, values = formats.bnb4(np.random.default_rng(1), 32, 64)
    tensors["weight.quant_map"].zero_()
    assert stored_form(read((tensors, values), None)[0]) is None


def test_scales_that_float16_can_not_hold_are_refused() -> None:
    made, values = formats.int8(np.random.default_rng(1), 32, 64)
    made["weight_scale"][3] = 7e4
    item, parts = read((made, values), FORMATS["compressed-w8a8"].config)
    form = stored_form(item)
    assert form is not None
    kept_codes(item, form, parts, 0, 3)
    with pytest.raises(CorruptCheckpoint, match=r"x.weight: the largest .* is 70000, .* is 65504. .* quant none"):
        kept_codes(item, form, parts, 2, 5)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_floats_that_are_none_are_refused(code: int) -> None:
    config = FORMATS["fp8-blocks"].config
    item, parts = read(FORMATS["fp8-blocks"].make(np.random.default_rng(1), 64, 96), config)
    parts["codes"].view(torch.uint8)[40, 7] = code
    form = stored_form(item)
    assert form is not None
    kept_codes(item, form, parts, 0, 40)
    with pytest.raises(CorruptCheckpoint, match=r"x.weight holds NaN .*0x7f and 0xff.* quant none"):
        kept_codes(item, form, parts, 40, 64)


def test_small_scales_of_floats_keep_their_digits() -> None:
    """Rows of 1e-4 and less, as real files have them: float16 has fewer digits below 6e-5."""
    made, values = formats.fp8(np.random.default_rng(1), 64, 96, rows=True)
    made["weight_scale"] *= 3e-4
    check((made, values * np.float32(3e-4)), FORMATS["fbgemm"].config, share=2.0**-11)


def test_float8_with_zero_points_or_of_another_kind_is_expanded() -> None:
    made, values = formats.fp8(np.random.default_rng(1), 64, 96, rows=True)
    zeros = {"weight_zero_point": torch.zeros(64, 1)}
    assert stored_form(read((made | zeros, values), None)[0]) is None
    made["weight"] = made["weight"].float().to(torch.float8_e5m2)
    assert stored_form(read((made, values), None)[0]) is None


@pytest.mark.parametrize("factor", [1e-5, 1e-9])
def test_scales_that_float16_rounds_away_are_refused(factor: float) -> None:
    made, values = formats.int8(np.random.default_rng(1), 32, 64)
    made["weight_scale"] *= factor
    item, parts = read((made, values), FORMATS["compressed-w8a8"].config)
    form = stored_form(item)
    assert form is not None
    with pytest.raises(CorruptCheckpoint, match=r"x.weight: scales .* lose more than 1.6% in float16. .* quant none"):
        kept_codes(item, form, parts, 0, 32)


def test_what_changed_since_the_inspection_is_refused() -> None:
    config = FORMATS["gptq-4"].config
    item, parts = read(FORMATS["gptq-4"].make(np.random.default_rng(1), 32, 64), config)
    form = stored_form(item)
    assert form is not None
    parts["g_idx"][5] = 1
    with pytest.raises(CorruptCheckpoint, match="g_idx has changed"):
        kept_codes(item, form, parts, 0, 32)
    item, parts = read(FORMATS["gptq-act-order"].make(np.random.default_rng(1), 32, 64), config)
    parts["g_idx"][:] = parts["g_idx"].roll(1)
    kept_codes(item, form, parts, 0, 32)
    parts["g_idx"][5] ^= 1
    with pytest.raises(CorruptCheckpoint, match="g_idx has changed"):
        kept_codes(item, form, parts, 0, 32)
    item, parts = read(formats.bnb4(np.random.default_rng(1), 32, 64), None)
    form = stored_form(item)
    assert form is not None
    parts["quant_map"][5] = 0.9
    with pytest.raises(CorruptCheckpoint, match="quant_map has changed"):
        kept_codes(item, form, parts, 0, 32)
