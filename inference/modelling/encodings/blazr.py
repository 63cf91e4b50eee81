"""Find the weights of a checkpoint that ``blazr quantise`` wrote: codes and scales in rows, each weight with its form.

``quantization_config`` of such a checkpoint:

    {"quant_method": "blazr", "version": 1, "stored_dtype": "bfloat16",
     "tensors": {"model.layers.0.mlp.down_proj.weight": "int4", …}, "measured": {"mean_kl": …, …}}

``{e}`` in a name stands for the number of an expert. A weight NAME lies in the files as NAME.codes and NAME.scales, a
row of each for each output: signed bytes for int8, else the fields of ``layers.coded.pack_planes``, and bfloat16. All
other tensors are those of the checkpoint that was quantised.

A weight that was in codes before and keeps them (version 2) has an object in the place of a name, with the members of
``inference.modelling.quantisation.Form`` that aren't their defaults, e.g. {"bits": 4, "group": 32, "has_offset": true}.
Its codes are fields too, also those of 8 bits, its scales have the form's dtype, and offsets lie in NAME.offsets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import Parts, expect_shape
from inference.modelling.encodings.quantisation_config import KEPT_VERSION, QuantisationConfig

METHOD = "blazr"
CODES, SCALES, OFFSETS = ".codes", ".scales", ".offsets"
STORED_DTYPES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""``stored_dtype`` to the dtype that a weight in codes counts as."""

_EXPERT = re.compile(r"(.*\.)\d+(?=\.)")
_MAX_AXES = 3


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a weight of some form lies in the files (``inference.modelling.quantisation.OWN_FORMS`` says what it means).

    Attributes:
        bits: Of a code.
        group: Inputs that share a scale.
        dtype: Of the codes, safetensors' spelling.
        scales: dtype of the scales.
        zero, levels, has_offset, is_float: As ``inference.modelling.quantisation.Form`` has them; of kept codes.
        is_kept: Whether the codes are those of the checkpoint that was quantised.
    """

    bits: int
    group: int
    dtype: str = "U8"
    scales: Literal["float16", "bfloat16"] = "bfloat16"
    zero: int = 0
    levels: tuple[int, ...] = ()
    has_offset: bool = False
    is_float: bool = False
    is_kept: bool = False


ROW_FORMS: Mapping[str, RowForm] = {
    "int2": RowForm(2, 64),
    "int3": RowForm(3, 64),
    "int4": RowForm(4, 32),
    "int5": RowForm(5, 64),
    "int6": RowForm(6, 64),
    "int8": RowForm(8, 128, "I8"),
}

ROW_STEP = 32
"""A scale for a whole row counts as one for the row's length rounded up to a multiple of this."""
_CODE_BITS = (2, 3, 4, 5, 6, 8)
_MAX_TABLE_BITS = 4
_GROUP_STEP = 16
_MAX_GROUP = 1 << 24
_MEMBERS = ("bits", "group", "zero", "levels", "has_offset", "scales", "is_float")


def find_blazr(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every weight that the config states, and refuse codes that it doesn't.

    Raises:
        CheckpointError: Config and tensors contradict each other; the message names both.
    """
    if config is None or config.method != METHOD:
        return
    stated = _stated_forms(config)
    unused = set(stated)
    for name in list(parts.tensors):
        if not name.endswith(CODES):
            continue
        weight = name.removesuffix(CODES)
        key = weight if weight in stated else _EXPERT.sub(r"\1{e}", weight, count=1)
        if key not in stated:
            raise MissingTensor(
                f"{name[:120]} holds codes, but {config.file}'s quantization_config doesn't state the form of "
                f"{weight[:120]}; write the model again with blazr quantise.",
                param=name[:120],
            )
        unused.discard(key)
        parts.add(_weight(parts, weight, stated[key], config))
    if unused:
        weight = min(unused)
        raise MissingTensor(
            f"{config.file} says that {weight[:120]} is stored as {form_label(stated[weight])}, but "
            f"{weight[:120]}{CODES} is missing from the files; complete the download.",
            param=weight[:120],
        )


def stored_dtype(config: QuantisationConfig) -> str:
    """Return the dtype that weights in codes count as.

    Raises:
        CorruptCheckpoint: The config states none, or an unknown one.
    """
    value = config.values.get("stored_dtype")
    if not isinstance(value, str) or value not in STORED_DTYPES:
        raise CorruptCheckpoint(
            f"{config.file}: stored_dtype is {str(value)[:40]!r}; it must be of {', '.join(STORED_DTYPES)}.",
            param="stored_dtype",
        )
    return STORED_DTYPES[value]


def described_measurement(config: QuantisationConfig) -> str:
    """Return the figures that the config states, as a phrase; empty: it states none."""
    measured = config.values.get("measured")
    if not isinstance(measured, Mapping):
        return ""
    bits, divergence = _number(measured, "bits_per_weight"), _number(measured, "mean_kl")
    phrases = [] if bits is None else [f"{bits:.3g} bits per weight"]
    if divergence is not None:
        text = str(measured.get("text", "an unknown text"))[:60]
        phrases.append(f"KL {divergence:.2e} nats as measured on {text}")
    return ", ".join(phrases)


def _stated_forms(config: QuantisationConfig) -> dict[str, RowForm]:
    stated = config.values.get("tensors")
    if not isinstance(stated, Mapping) or not stated:
        raise CorruptCheckpoint(
            f"{config.file}: quantization_config has no tensors; it must name each weight in codes and its form.",
            param="tensors",
        )
    found: dict[str, RowForm] = {}
    for name, form in stated.items():
        row_form = ROW_FORMS.get(form) if isinstance(form, str) else None
        if isinstance(form, Mapping) and config.values.get("version") == KEPT_VERSION:
            row_form = _kept_form(form)
        if row_form is None:
            raise UnsupportedFormat(
                f"{config.file} says that {str(name)[:120]} is stored as {str(form)[:40]!r}; {', '.join(ROW_FORMS)} "
                "can be read.",
                param=str(name)[:120],
            )
        found[str(name)] = row_form
    return found


def _kept_form(stated: Mapping[str, Any]) -> RowForm | None:
    """Return the form that an object states; None: it states none that products take."""
    values = {"zero": 0, "levels": [], "has_offset": False, "scales": "float16", "is_float": False, **stated}
    bits, group, zero, levels = (values.get(key) for key in ("bits", "group", "zero", "levels"))
    if not values.keys() <= set(_MEMBERS) or bits not in _CODE_BITS or values["scales"] not in ("float16", "bfloat16"):
        return None
    if not all(_is_whole(value) for value in (bits, group, zero)) or not isinstance(levels, list):
        return None
    bits, group, zero = cast("tuple[int, int, int]", (bits, group, zero))
    flags = (values["has_offset"], values["is_float"])
    if not 0 < group <= _MAX_GROUP or group % _GROUP_STEP or not 0 <= zero < 1 << bits or not all(map(_is_flag, flags)):
        return None
    if levels and (bits > _MAX_TABLE_BITS or len(levels) != 1 << bits):
        return None
    if not all(_is_whole(level) and -128 <= level <= 127 for level in levels):
        return None
    if values["is_float"] and (bits != 8 or values["has_offset"] or zero):
        return None
    return RowForm(bits, group, "U8", values["scales"], zero, tuple(levels), *flags, is_kept=True)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _weight(parts: Parts, weight: str, form: RowForm, config: QuantisationConfig) -> EncodedTensor:
    """Return one weight, after a check of its parts against its form."""
    form_name = form_label(form)
    codes_name, scales_name = weight + CODES, weight + SCALES
    codes = parts.tensors[codes_name]
    if codes.dtype != form.dtype:
        raise UnsupportedFormat(
            f"{config.file} says that {weight[:120]} is stored as {form_name}, whose codes are {form.dtype}, but "
            f"{codes_name[:120]} is stored as {codes.dtype}.",
            param=codes_name[:120],
        )
    if not 2 <= len(codes.shape) <= _MAX_AXES or math.prod(codes.shape) < 1:
        raise TensorShapeMismatch(
            f"{codes_name[:120]} has shape {list(codes.shape)}; a matrix or a stack of them is needed.",
            param=codes_name[:120],
        )
    scales = parts.need(scales_name, codes_name, (STORED_DTYPES[form.scales],))
    inputs, bits_left = divmod(codes.shape[-1] * 8, form.bits)
    if bits_left:
        raise TensorShapeMismatch(
            f"{codes_name[:120]} has {codes.shape[-1]} bytes a row, which no number of {form.bits}-bit codes takes.",
            param=codes_name[:120],
        )
    expected = (*codes.shape[:-1], -(-inputs // form.group))
    expect_shape(scales_name, scales, expected, f"the {form_name} {codes_name}")
    shape, found = (*codes.shape[:-1], inputs), {"codes": codes_name, "scales": scales_name}
    if form.has_offset:
        offsets = parts.need(weight + OFFSETS, codes_name, (STORED_DTYPES[form.scales],))
        expect_shape(weight + OFFSETS, offsets, expected, f"the {form_name} {codes_name}")
        found["offsets"] = weight + OFFSETS
    if form.group > -(-inputs // ROW_STEP) * ROW_STEP and form.is_kept:
        raise TensorShapeMismatch(
            f"{codes_name[:120]} has {inputs} inputs, fewer than share a scale by {config.file} ({form.group}).",
            param=codes_name[:120],
        )
    if not form.is_kept:
        return EncodedTensor(weight, shape, "blazr", found, group_size=form.group, form=form_name)
    return EncodedTensor(
        weight, shape, "blazr", found, bits=form.bits, group_size=form.group, zero_offset=form.zero,
        scales=form.scales, levels=form.levels, is_float=form.is_float,
    )  # fmt: skip


def kept_label(bits: int, *, is_float: bool) -> str:
    """Return what kept codes are, for people."""
    return "kept float8" if is_float else f"kept {bits}-bit"


def form_label(form: RowForm) -> str:
    """Return the name of a form for people: int2 to int8, or what kept codes are."""
    if form.is_kept:
        return kept_label(form.bits, is_float=form.is_float)
    return next(name for name, own in ROW_FORMS.items() if own == form)


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None
