"""Recognise compressed-tensors' packed integers, and read the schemes of its ``config_groups``.

Source: compressed-tensors, ``compressors/pack_quantized`` and ``quantization/quant_args``. Which group's targets a
layer belongs to isn't looked up, since targets are a stranger's regular expressions: a tensor has to fit one group.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import (
    FLOATS,
    Parts,
    choose_scale_dtype,
    expect_matrix,
    expect_shape,
    find_input_order,
)
from inference.modelling.encodings.quantisation_config import QuantisationConfig, whole_number
from inference.modelling.families.config import MAX_SIZE

STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_MAX_GROUPS = 256


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How one config group stores its weights.

    Attributes:
        bits: Of a code.
        kind: int or float.
        strategy: What shares a scale, one of ``STRATEGIES``.
        group_size: Inputs that share a scale; 0: not stated.
        block: Outputs and inputs of a block.
    """

    bits: int
    kind: str
    strategy: str
    group_size: int = 0
    block: tuple[int, int] = (128, 128)


def schemes_of(config: QuantisationConfig | None) -> list[WeightScheme]:
    """The weights' schemes of all config groups.

    Raises:
        CorruptCheckpoint: A group is no object, or states something impossible.
    """
    groups = {} if config is None else config.values.get("config_groups") or {}
    if not isinstance(groups, Mapping) or len(groups) > _MAX_GROUPS:
        raise CorruptCheckpoint("config.json: config_groups must be an object of groups.", param="config_groups")
    return [
        _scheme(str(name)[:40], group["weights"])
        for name, group in groups.items()
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)
    ]


def _scheme(name: str, weights: Mapping[str, Any]) -> WeightScheme:
    where = f"config.json: config_groups.{name}.weights"
    bits = whole_number(weights.get("num_bits", 8), f"{where}.num_bits")
    size = whole_number(weights.get("group_size") or 0, f"{where}.group_size")
    kind = str(weights.get("type", "int"))
    strategy = weights.get("strategy") or ("group" if size > 0 else "channel" if size < 0 else "tensor")
    if strategy not in STRATEGIES or kind not in ("int", "float") or not 1 <= bits <= 8:
        raise UnsupportedFormat(
            f"{where}: {bits} bits, type {kind[:20]!r}, strategy {str(strategy)[:20]!r}; 1 to 8 bits, int or float and "
            f"{', '.join(STRATEGIES)} are read.",
            param="config_groups",
        )
    block = weights.get("block_structure") or (128, 128)
    if not isinstance(block, list | tuple) or len(block) != 2:
        raise CorruptCheckpoint(f"{where}.block_structure must be two numbers.", param="config_groups")
    rows, columns = (whole_number(item, f"{where}.block_structure") for item in block)
    if min(rows, columns) < 1:
        raise CorruptCheckpoint(f"{where}.block_structure must be two positive numbers.", param="config_groups")
    return WeightScheme(bits, kind, str(strategy), max(size, 0), (rows, columns))


def expect_scheme(config: QuantisationConfig | None, name: str, bits: int, kind: str) -> None:
    """Check that a config group of compressed-tensors, if there are any, has such weights.

    Raises:
        UnsupportedFormat: All have others.
    """
    schemes = schemes_of(config) if config is not None and config.method == "compressed-tensors" else []
    if schemes and not any((scheme.bits, scheme.kind) == (bits, kind) for scheme in schemes):
        raise UnsupportedFormat(
            f"the config_groups of {config and config.file} say {_described(schemes)}, but {name} is stored in {bits} "
            f"bits ({kind}); use the config that belongs to these weights.",
            param="config_groups",
        )


def _described(schemes: list[WeightScheme]) -> str:
    return " or ".join(dict.fromkeys(f"{scheme.bits} bits ({scheme.kind})" for scheme in schemes[:4]))


def find_packed_integers(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every int32 ``….weight_packed`` with its companions.

    Raises:
        CheckpointError: A companion is missing, or shapes contradict each other or every config group.
    """
    for name, info in parts.tensors.items():
        if name.endswith(".weight_packed") and info.dtype == "I32":
            _take(parts, name, config)


def _take(parts: Parts, name: str, config: QuantisationConfig | None) -> None:
    if config is not None and config.method != "compressed-tensors":
        raise UnsupportedFormat(
            f"{config.file} says {config.method}, but {name} belongs to compressed-tensors.",
            param="quantization_config",
        )
    stem = name.removesuffix("packed")
    rows, words = expect_matrix(name, parts.tensors[name])
    scale = parts.need(stem + "scale", name, FLOATS)
    shape_info = parts.need(stem + "shape", name, ("I64", "I32"))
    expect_shape(stem + "shape", shape_info, (2,), "its use")
    outputs, inputs = struct.unpack("<2q" if shape_info.dtype == "I64" else "<2i", parts.read(shape_info))
    scale_rows, num_groups = expect_matrix(stem + "scale", scale)
    if outputs != rows or not 1 <= inputs <= MAX_SIZE:
        raise TensorShapeMismatch(
            f"{stem}shape says {[outputs, inputs]}, but {name} has {rows} rows and {words} words a row.", param=name
        )
    stated = schemes_of(config)
    schemes = [scheme for scheme in stated if scheme.kind == "int"]
    if not stated:
        schemes = [WeightScheme(bits, "int", "group", -(-inputs // num_groups)) for bits in (4, 8)]
    fitting = [
        (scheme, size)
        for scheme in schemes
        if words in (-(-inputs * scheme.bits // 32), -(-inputs // (32 // scheme.bits)))
        and -(-inputs // (size := scheme.group_size or inputs)) == num_groups
    ]
    if not fitting or (scale_rows != outputs and (scale_rows, num_groups) != (1, 1)):
        described = " or ".join(
            f"{scheme.bits} bits ({scheme.kind}) by {scheme.group_size or 'row'}" for scheme in (stated or schemes)[:4]
        )
        raise TensorShapeMismatch(
            f"{name} of shape {[rows, words]} with scales of shape {list(scale.shape)} for {[outputs, inputs]} weights "
            f"contradicts the config_groups of config.json ({described}).",
            param=name,
        )
    scheme, size = fitting[0]
    names = {"packed": name, "scale": stem + "scale"}
    if stem + "zero_point" in parts.tensors:
        names["zero_point"] = _zero_point(parts, name, outputs, num_groups, scheme.bits)
    if stem + "g_idx" in parts.tensors:
        expect_shape(stem + "g_idx", parts.need(stem + "g_idx", name, ("I32", "I64")), (inputs,), name)
        names["g_idx"] = stem + "g_idx"
    order = find_input_order(parts, names.get("g_idx"), size)
    parts.add(
        EncodedTensor(
            name.removesuffix("_packed"), (outputs, inputs), "packed_int", names, bits=scheme.bits, group_size=size,
            scales=choose_scale_dtype(scale, has_zeros="zero_point" in names) if order else "",
            is_permuted=order == "permuted",
        )
    )  # fmt: skip
    parts.ignore(stem + "shape")


def _zero_point(parts: Parts, name: str, outputs: int, num_groups: int, bits: int) -> str:
    """Name of the zero points, packed along the outputs."""
    zero_name = name.removesuffix("packed") + "zero_point"
    shape = parts.need(zero_name, name, ("I32",)).shape
    packed_rows = {-(-outputs * bits // 32), -(-outputs // (32 // bits))}
    if len(shape) != 2 or shape[0] not in packed_rows or shape[1] != num_groups:
        raise TensorShapeMismatch(
            f"{zero_name} has shape {list(shape)}; {[max(packed_rows), num_groups]} is needed by {name} of "
            f"{bits} bits.",
            param=zero_name,
        )
    return zero_name
