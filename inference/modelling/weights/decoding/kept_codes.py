"""Take the codes, scales and offsets of quantised safetensors as they are, for products in codes.

Letters: n rows, i inputs, g groups. All functions return rows ``begin`` to ``stop``: (n, i) uint8 codes, (n, g) float32
scales and offsets. W = scale · level(code) + offset; see ``inference.modelling.quantisation.Form``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from inference.errors import CorruptCheckpoint
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.byte_levels import byte_levels
from inference.modelling.layers.code_search import scales_dtype
from inference.modelling.layers.coded import Codes
from inference.modelling.quantisation import FLOAT8_STEP, Form
from inference.modelling.weights.decoding.bits import PartTensors
from inference.modelling.weights.decoding.floats import (
    bnb4_absmax,
    bnb4_codes,
    fp4_codes,
    fp4_scales,
    row_scales,
    scales_of,
)
from inference.modelling.weights.decoding.integers import (
    IntegerCodes,
    unpack_awq_rows,
    unpack_gptq_rows,
    unpack_hqq_rows,
    unpack_packed_int_rows,
)
from inference.modelling.weights.decoding.ternary import ternary_codes, ternary_scale

_MAX_ROUNDING = 1 / 64
"""Most that scales of some rows may change, as a share of their norm. float16 has fewer digits below 6e-5."""
_NAN = 0x7F
"""Of float8, but for the sign."""
_FP4_STEP = 0.5
"""Levels of four-bit floats are twice their values."""


def kept_codes(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
    """Return rows of a weight as codes, with float32 scales and offsets.

    Offsets are (form.zero - zero point) · scale. ``CodeStore.put`` rounds scales and offsets to the form's dtype: for
    float16 by at most 2^-11 of each normal value.

    Args:
        item: The weight.
        form: What ``stored_form`` says of it.
        parts: The tensors of the files by their roles.
        begin, stop: Rows.

    Raises:
        CorruptCheckpoint: Scales or offsets are too large or too small for the form's dtype or not finite, or the file
            isn't the one that was inspected.
    """
    codes = _EXTRACTIONS[item.coding](item, form, parts, begin, stop)
    dtype = scales_dtype(form)
    for values in (codes.scales, codes.offsets):
        if values is None:
            continue
        rounded = values.to(dtype).float()
        if not bool(torch.isfinite(rounded).all()):
            raise CorruptCheckpoint(
                f"{item.name}: the largest scale or offset is {float(values.abs().max()):g}, the limit of "
                f"{form.scales} is {torch.finfo(dtype).max:g}. Load the model with quant none.",
                param=item.name,
            )
        if float((rounded - values).norm()) > _MAX_ROUNDING * float(values.norm()):
            raise CorruptCheckpoint(
                f"{item.name}: scales or offsets of {float(values.abs().max()):g} and less lose more than "
                f"{_MAX_ROUNDING:.1%} in {form.scales}. Load the model with quant none.",
                param=item.name,
            )
    return codes


def _integers(unpack: Callable[[EncodedTensor, PartTensors, int, int], IntegerCodes]) -> _Extraction:
    def extract(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
        found = unpack(item, parts, begin, stop)
        order = torch.argsort(found.groups, stable=True) if item.is_permuted else None
        groups = found.groups if order is None else found.groups[order]
        if not torch.equal(groups, torch.arange(item.shape[1]) // form.group):
            raise CorruptCheckpoint(
                f"{item.name}: g_idx has changed since the checkpoint was inspected. Inspect it again.", param=item.name
            )
        offsets = (form.zero - found.zeros) * found.scales if form.has_offset else None
        codes = found.codes if order is None else found.codes[:, order]
        return Codes(codes, found.scales, offsets, form, order)

    return extract


def _scaled(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
    """int8: bytes with the highest bit turned are codes from 0 on. Float8 is its own code, unless it is NaN."""
    codes = parts["codes"][begin:stop].view(torch.uint8) ^ form.zero
    scales = row_scales(item, scales_of(parts["scale"]), begin, stop).expand(stop - begin, -1) / item.divisor
    if form.is_float:
        if bool(((codes & _NAN) == _NAN).any()):
            raise CorruptCheckpoint(
                f"{item.name} holds NaN (float8 codes 0x7f and 0xff), of which no product is a number. Get the file "
                "again, or load the model with quant none.",
                param=item.name,
            )
        scales = scales / FLOAT8_STEP
    offsets = None
    if "zero_point" in parts:
        offsets = -row_scales(item, parts["zero_point"].float(), begin, stop) * scales
    return Codes(codes, scales, offsets, form)


def _fp4(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
    if len(item.shape) > 2:  # the matrices of a stack lie one below the other
        parts = {role: part.flatten(0, 1) for role, part in parts.items()}
    return Codes(fp4_codes(parts, begin, stop), fp4_scales(item, parts, begin, stop) * _FP4_STEP, None, form)


def _bnb4(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
    found = byte_levels(tuple(parts["quant_map"].double().flatten().tolist()))
    if found is None or found[0] != form.levels:
        raise CorruptCheckpoint(
            f"{item.name}: quant_map has changed since the checkpoint was inspected. Inspect it again.", param=item.name
        )
    inputs = item.shape[1]
    codes = bnb4_codes(parts, begin * inputs, stop * inputs).view(-1, inputs)
    per_row = inputs // item.group_size
    absmax = bnb4_absmax(item, parts, begin * per_row, stop * per_row).view(-1, per_row)
    return Codes(codes, absmax * found[1], None, form)


def _bitnet(item: EncodedTensor, form: Form, parts: PartTensors, begin: int, stop: int) -> Codes:
    scales = torch.full((stop - begin, 1), ternary_scale(item, parts))
    return Codes(ternary_codes(parts, begin, stop), scales, None, form)


_Extraction = Callable[[EncodedTensor, Form, PartTensors, int, int], Codes]

_EXTRACTIONS: Mapping[str, _Extraction] = {
    "gptq": _integers(unpack_gptq_rows),
    "awq": _integers(unpack_awq_rows),
    "packed_int": _integers(unpack_packed_int_rows),
    "hqq": _integers(unpack_hqq_rows),
    "bitnet": _bitnet,
    "scaled": _scaled,
    "fp4": _fp4,
    "bnb4": _bnb4,
}
