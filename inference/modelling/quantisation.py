"""Which parameters are quantised, and how many bytes that leaves. Names and shapes only, no torch.

``quant`` names what the matrices of the layers become. ``auto``: they stay in the codes that the files have, if they
have any. ``none``: they become floats. ``int8`` and ``int4`` quantise them; embedding and head then become int8
whatever it says, since a step reads the head once for all layers' sake, and its rounding goes straight into the
logits. The same holds for the down projection of the last layer, which int4 therefore quantises to int8. Everything
that is small or that a recurrence or a choice multiplies stays as it is: routers, norms, convolutions, A, D, dt, gates
of few rows.

int8: 255 symmetric steps, a bfloat16 scale for each output and 128 inputs: 8.125 bits per weight. int4: 16 levels, a
scale for each output and 32 inputs: 4.5 bits. ``blazr quantise`` writes further forms (``OWN_FORMS``), which stay
whatever ``quant`` says. See docs/decisions/0010-quantised-products.md, docs/decisions/0053-codes-by-error.md and
docs/decisions/0056-quantised-by-measurement.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.sources import joined_names
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import DTYPE_BYTES, Shape
from inference.modelling.specs.sources import Piece, Source

Quant = Literal["auto", "none", "int8", "int4"]
Kind = Literal["int8", "int4"]
FormName = Literal["int2", "int3", "int4", "int5", "int6", "int8"]

QUANTS: tuple[Quant, ...] = ("auto", "none", "int8", "int4")
GROUP_SIZES: dict[Kind, int] = {"int8": 128, "int4": 32}
INT4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the sixteen codes of int4 stand for: those of GGUF's IQ4_NL (ggml, ggml-common.h). More of them lie near 0, as
more weights do; the ends differ, so that a scale's sign can give the farther one to the greatest magnitude."""
INT2_LEVELS = (-127, -38, 15, 83)
INT3_LEVELS = (-127, -70, -38, -15, 5, 27, 54, 95)
REVISION = 6
"""Of the arithmetic of quantised products: kept states of another one are not used again."""
BLOCK_ROWS = 32
"""Outputs that lie together in the native layouts."""
SMALLEST_SIDE = 32
"""A matrix with fewer rows or columns stays as it is: it saves nothing, and often decides something."""

_HEADS = ("embed_tokens.weight", "lm_head.weight")
_EXPERTS = ("gate_up_proj", "up_proj", "down_proj")
_KEPT = (
    "router", "conv1d", "dt_proj", "ba_proj", "low_rank_proj", "lambda_proj", "shared_expert_gate", "k_b_proj",
    "v_b_proj", "key_taps_proj", "value_taps_proj", "sink_proj",
)  # fmt: skip
"""Modules whose matrices stay: choices, time scales, taps, sinks, and MLA's expansions, used from both sides."""

PLANES: Mapping[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""Bits of a code to the widths of the fields that it lies in, its lowest bits first: no field crosses a byte."""
GROUP_ALIGN = 16
"""Groups are multiples of so many inputs."""
FACTOR_INPUTS = 256
"""Neighbouring inputs of a row that share a factor, if a form has factors; a block of GGUF's K types."""
ROW_GROUP = 32
"""If a row has one scale, its group size is the row's length rounded up to a multiple of this."""
_INDEX_BYTES = 8
"""Of the number of an input."""
MAX_TABLE_BITS = 4
"""Codes of more bits stand for ``code - zero``."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a matrix is kept in codes: scale · level(code) + offset, with a scale for each output and group of inputs.

    Attributes:
        bits: Of a code: 2, 3, 4, 5, 6 or 8.
        group: Inputs that share a scale and an offset, a multiple of ``GROUP_ALIGN``.
        zero: level(code) is code - zero, unless ``levels`` says otherwise.
        levels: What each of the codes stands for, -128 to 127, if they aren't evenly spaced; at most 4 bits.
        has_offset: Whether groups have offsets, of the scales' dtype.
        scales: dtype of the scales.
        is_float: Whether codes are floats of 8 bits (E4M3): level(code) is ``FLOAT8_STEP`` times the float.
        has_factors: Whether scales are whole numbers, -128 to 127, times a float16 that ``FACTOR_INPUTS`` inputs share;
            offsets alike, with a factor of their own.
    """

    bits: int
    group: int
    zero: int = 0
    levels: tuple[int, ...] = ()
    has_offset: bool = False
    scales: Literal["float16", "bfloat16"] = "float16"
    is_float: bool = False
    has_factors: bool = False

    def __post_init__(self) -> None:
        assert self.bits in PLANES, self.bits
        assert self.group % GROUP_ALIGN == 0, self.group
        assert not self.levels or (len(self.levels) == 1 << self.bits and self.bits <= MAX_TABLE_BITS), self.levels
        assert not self.is_float or (self.bits == 8 and not self.has_offset), self
        assert not self.has_factors or (self.scales == "float16" and FACTOR_INPUTS % self.group == 0), self
        assert not self.has_factors or not self.is_float, self

    @property
    def num_scales(self) -> int:
        """Of a group and an output: the scale, and perhaps the offset."""
        return 2 if self.has_offset else 1

    @property
    def bits_per_weight(self) -> float:
        """Scales, offsets and factors included."""
        if self.has_factors:
            return self.bits + self.num_scales * (8 / self.group + 16 / FACTOR_INPUTS)
        return self.bits + self.num_scales * 16 / self.group

    @property
    def without_factors(self) -> Form:
        """The form of the same codes whose scales are multiplied out."""
        return replace(self, has_factors=False)


FLOAT8_STEP = 2.0**-8
"""Its bits moved to their places in a float16 are so much of a float8's value. So scales are many times a file's, which
float16 would often round as subnormal."""
FP4_CODES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of a four-bit float (E2M1), by its code."""

GGUF_FORMS: Mapping[str, Form] = {
    "Q4_0": Form(4, 32, zero=8),
    "Q4_1": Form(4, 32, has_offset=True),
    "Q5_0": Form(5, 32, zero=16),
    "Q5_1": Form(5, 32, has_offset=True),
    "Q8_0": Form(8, 32, zero=128),
    "Q2_K": Form(2, 16, has_offset=True, has_factors=True),
    "Q3_K": Form(3, 16, zero=4, has_factors=True),
    "Q4_K": Form(4, 32, has_offset=True),
    "Q5_K": Form(5, 32, has_offset=True),
    "Q6_K": Form(6, 16, zero=32),
    "IQ4_NL": Form(4, 32, levels=INT4_LEVELS),
    "IQ4_XS": Form(4, 32, levels=INT4_LEVELS),
    "MXFP4": Form(4, 32, levels=FP4_CODES),
    "NVFP4": Form(4, 16, levels=FP4_CODES),
}
"""GGUF's types to the forms that hold their codes. Scales of scales are multiplied out, so Q4_K takes 5 bits per weight
instead of 4.5, Q5_K 6 instead of 5.5, and Q6_K 7 instead of 6.56. Beside codes of 2 and 3 bits that would be
too much: those scales become bytes, with the file's factor for a block (llama.cpp's ``d`` and ``dmin``), so Q2_K takes
3.13 bits instead of 2.63, and Q3_K 3.56 instead of 3.44."""


OWN_FORMS: Mapping[FormName, Form] = {
    "int2": Form(2, 64, levels=INT2_LEVELS, scales="bfloat16"),
    "int3": Form(3, 64, levels=INT3_LEVELS, scales="bfloat16"),
    "int4": Form(4, GROUP_SIZES["int4"], levels=INT4_LEVELS, scales="bfloat16"),
    "int5": Form(5, 64, zero=16, scales="bfloat16"),
    "int6": Form(6, 64, zero=32, scales="bfloat16"),
    "int8": Form(8, GROUP_SIZES["int8"], zero=128, scales="bfloat16"),
}
"""The forms that ``blazr quantise`` writes, those of the fewest bits first."""


def is_quantisable(name: str, shape: Sequence[int]) -> bool:
    """Whether int8 and int4 quantise the parameter of this name and shape."""
    return _kind_by_name(name, shape, "int8") is not None


def _kind_by_name(name: str, shape: Sequence[int], quant: Quant) -> Kind | None:
    if quant == "auto" or quant == "none" or len(shape) not in (2, 3) or min(shape[-2:]) < SMALLEST_SIDE:
        return None
    if name in _HEADS:
        return "int8"
    *_, module, leaf = name.split(".")
    if len(shape) == 3:
        return quant if module in ("experts", "shared_experts") and leaf in _EXPERTS else None
    return quant if leaf == "weight" and module.endswith("_proj") and module not in _KEPT else None


def quantised_kinds(spec: ModelSpec, quant: Quant) -> Mapping[str, Kind | None]:
    """Map each parameter of a model to the kind that it has in memory, quantised or kept; None: neither.

    Under int4, a ``down_proj`` of the last layer becomes int8: its error reaches the logits through no further layer.
    Stacked experts aren't excepted.
    """
    shapes = spec.parameter_shapes()
    kinds = {name: _kind_by_name(name, shape, quant) for name, shape in shapes.items()}
    last = f"layers.{len(spec.layers) - 1}."
    for name, kind in kinds.items():
        if kind == "int4" and name.startswith(last) and name.endswith(".down_proj.weight"):
            kinds[name] = "int8"
    return kinds | kept_kinds(spec)


def kept_kinds(spec: ModelSpec) -> dict[str, Kind]:
    """The parameters whose codes lie in the files as a network keeps them (``blazr quantise``), and their kinds."""
    forms = {item.name: item.form for item in spec.encoded if item.coding == "blazr"}
    if not forms:
        return {}
    kinds: dict[str, Kind] = {}
    for parameter, source in spec.parameters.items():
        found = {forms.get(name) for name in source.tensor_names()}
        (form, *others) = found
        if form in GROUP_SIZES and not others and all(piece == Piece(piece.name) for piece in source.pieces):
            kinds[parameter] = form
    return kinds


def quantised_bytes(shape: Sequence[int], kind: Kind) -> int:
    """Bytes of values and scales, without what fills the last block of outputs (native) or inputs (on a device)."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    bits = 8 if kind == "int8" else 4
    return rows * (columns * bits // 8 + 2 * -(-columns // GROUP_SIZES[kind]))


def coded_bytes(shape: Sequence[int], form: Form) -> int:
    """Bytes of codes, scales, offsets and factors, without what fills the last block of outputs (native)."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    groups = -(-columns // form.group)
    scale_bytes = groups + 2 * -(-columns // FACTOR_INPUTS) if form.has_factors else 2 * groups
    return rows * (code_bytes(columns, form.bits) + form.num_scales * scale_bytes)


def code_bytes(inputs: int, bits: int) -> int:
    """Bytes of the codes of a row."""
    return sum(-(-inputs * width // 8) for width in PLANES[bits])


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Rows of a parameter, a stack's matrices one below the other, that are kept in one form.

    Attributes:
        rows: Their number.
        form: Of all of them.
        is_permuted: Whether their inputs have an order of their own.
    """

    rows: int
    form: Form
    is_permuted: bool = False


def coded_parameters(spec: ModelSpec, quant: Quant) -> dict[str, tuple[CodedRows, ...]]:
    """Parameters that stay in the codes of the files, by name: the forms of their rows from the first one on.

    Those of ``blazr quantise`` stay whatever ``quant`` says. int8 and int4 aren't among them: see ``kept_kinds``.
    """
    items = {item.name: item for item in spec.encoded if quant == "auto" or item.coding == "blazr"}
    shapes = spec.parameter_shapes()
    found = {name: _coded_rows(name, shapes[name], source, items) for name, source in spec.parameters.items()}
    return {name: rows for name, rows in found.items() if rows}


def stored_form(item: EncodedTensor) -> Form | None:
    """The form that holds the codes of a stored weight; None: there is none, or ``kept_kinds`` has it."""
    if item.coding == "blazr":
        return None if item.form in GROUP_SIZES else own_form(item)
    if item.coding != "gguf":
        return _safetensors_form(item)
    form = GGUF_FORMS.get(item.type)
    return form if form is None or item.keeps_blocks else form.without_factors


def own_form(item: EncodedTensor) -> Form:
    """Return the form of a weight that ``blazr quantise`` wrote, also of int4 and int8."""
    if item.form:
        return OWN_FORMS[cast("FormName", item.form)]
    return Form(
        item.bits,
        item.group_size,
        zero=item.zero_offset,
        levels=item.levels,
        has_offset="offsets" in item.parts,
        scales=item.scales or "float16",
        is_float=item.is_float,
    )


def _safetensors_form(item: EncodedTensor) -> Form | None:
    """The form of a matrix of other programs' safetensors, or of a stack, if its groups are those of a form."""
    bits, inputs, group = item.bits, item.shape[-1], item.group_size or item.block[1]
    can_be_stack = item.coding == "fp4"
    if not item.scales or len(item.shape) > 2 + can_be_stack or bits not in PLANES:
        return None
    if item.coding in ("bnb4", "hqq") and inputs % group:
        return None  # groups run on from row to row
    if group >= inputs or item.coding == "bitnet":  # a scale per row
        group = -(-inputs // ROW_GROUP) * ROW_GROUP
    if group % GROUP_ALIGN:
        return None
    levels = FP4_CODES if item.coding == "fp4" else item.levels
    has_offset = not item.parts.keys().isdisjoint(("qzeros", "zero", "zero_point"))
    zero = 0 if levels or item.is_float else 1 if item.coding == "bitnet" else 1 << (bits - 1)
    return Form(
        bits, group, zero=zero, levels=levels, has_offset=has_offset, scales=item.scales, is_float=item.is_float
    )


def _coded_rows(name: str, shape: Shape, source: Source, items: Mapping[str, EncodedTensor]) -> tuple[CodedRows, ...]:
    if not is_quantisable(name, shape) or any(item not in items for item in source.tensor_names()):
        return ()
    names = joined_names(source, shape, lambda stored: items[stored].shape)
    rows: list[CodedRows] = []
    for stored in names or ():
        form = stored_form(items[stored])
        if form is None:
            return ()
        part = CodedRows(math.prod(items[stored].shape[:-1]), form, items[stored].is_permuted)
        can_join = rows and rows[-1].form == form and not rows[-1].is_permuted and not part.is_permuted
        if can_join and rows[-1].rows % BLOCK_ROWS == 0:
            rows[-1] = CodedRows(rows[-1].rows + part.rows, form)
        else:
            rows.append(part)
    is_stack = len(shape) == 3
    if is_stack and (len(rows) != 1 or shape[1] % BLOCK_ROWS):
        return ()
    if (is_stack or name in _HEADS) and any(part.is_permuted for part in rows):
        return ()
    return tuple(rows)


def weights_bytes(spec: ModelSpec, dtype: str, quant: Quant) -> int:
    """Bytes of all weights of a network in memory."""
    kinds, coded, shapes = quantised_kinds(spec, quant), coded_parameters(spec, quant), spec.parameter_shapes()
    return sum(
        sum(_part_bytes(part, shape[-1]) for part in coded[name])
        if name in coded
        else _bytes(shape, dtype, kinds[name])
        for name, shape in shapes.items()
    )


def _part_bytes(part: CodedRows, inputs: int) -> int:
    return coded_bytes((part.rows, inputs), part.form) + (inputs * _INDEX_BYTES if part.is_permuted else 0)


def _bytes(shape: Shape, dtype: str, kind: Kind | None) -> int:
    return math.prod(shape) * DTYPE_BYTES[dtype] if kind is None else quantised_bytes(shape, kind)
