"""Find the weights of a checkpoint that ``blazr quantise`` wrote: codes and scales in rows, each weight with its form.

``quantization_config`` of such a checkpoint:

    {"quant_method": "blazr", "version": 1, "stored_dtype": "bfloat16",
     "tensors": {"model.layers.0.mlp.down_proj.weight": "int4", …}, "measured": {"mean_kl": …, …}}

``{e}`` in a name stands for the number of an expert. A weight NAME lies in the files as NAME.codes and NAME.scales, a
row of each for each output: signed bytes for int8, else the fields of ``layers.coded.pack_planes``, and bfloat16. All
other tensors are those of the checkpoint that was quantised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import Parts, expect_shape
from inference.modelling.encodings.quantisation_config import QuantisationConfig

METHOD = "blazr"
CODES, SCALES = ".codes", ".scales"
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
    """

    bits: int
    group: int
    dtype: str = "U8"


ROW_FORMS: Mapping[str, RowForm] = {
    "int2": RowForm(2, 64),
    "int3": RowForm(3, 64),
    "int4": RowForm(4, 32),
    "int5": RowForm(5, 64),
    "int6": RowForm(6, 64),
    "int8": RowForm(8, 128, "I8"),
}


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
            f"{config.file} says that {weight[:120]} is stored as {stated[weight]}, but {weight[:120]}{CODES} is "
            "missing from the files; complete the download.",
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


def _stated_forms(config: QuantisationConfig) -> dict[str, str]:
    stated = config.values.get("tensors")
    if not isinstance(stated, Mapping) or not stated:
        raise CorruptCheckpoint(
            f"{config.file}: quantization_config has no tensors; it must name each weight in codes and its form.",
            param="tensors",
        )
    for name, form in stated.items():
        if not isinstance(form, str) or form not in ROW_FORMS:
            raise UnsupportedFormat(
                f"{config.file} says that {str(name)[:120]} is stored as {str(form)[:40]!r}; {', '.join(ROW_FORMS)} "
                "can be read.",
                param=str(name)[:120],
            )
    return dict(stated)


def _weight(parts: Parts, weight: str, form_name: str, config: QuantisationConfig) -> EncodedTensor:
    """Return one weight, after a check of its parts against its form."""
    form = ROW_FORMS[form_name]
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
    scales = parts.need(scales_name, codes_name, ("BF16",))
    inputs, bits_left = divmod(codes.shape[-1] * 8, form.bits)
    if bits_left:
        raise TensorShapeMismatch(
            f"{codes_name[:120]} has {codes.shape[-1]} bytes a row, which no number of {form.bits}-bit codes takes.",
            param=codes_name[:120],
        )
    expect_shape(scales_name, scales, (*codes.shape[:-1], -(-inputs // form.group)), f"the {form_name} {codes_name}")
    shape = (*codes.shape[:-1], inputs)
    return EncodedTensor(
        weight, shape, "blazr", {"codes": codes_name, "scales": scales_name}, group_size=form.group, form=form_name
    )


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None
