"""Recognise GPTQ's and AWQ's packed matrices: ``qweight``, ``qzeros``, ``scales`` and perhaps ``g_idx``.

Layouts: AutoGPTQ's and GPTQModel's QuantLinear, AutoAWQ's WQLinear_GEMM. Both have the same names; with 4 bits the
shapes tell them apart: GPTQ packs inputs, so that qweight has a column for each output, AWQ packs eight outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import (
    FLOATS,
    Parts,
    choose_scale_dtype,
    expect_matrix,
    expect_shape,
    find_input_order,
    is_repeated,
)
from inference.modelling.encodings.quantisation_config import QuantisationConfig, whole_number

GPTQ_BITS = (2, 3, 4, 8)
_ROLES = ("qweight", "qzeros", "scales", "g_idx")


def find_gptq_and_awq(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every ``….qweight`` with its companions.

    Raises:
        CheckpointError: A companion is missing, shapes contradict each other or the config.
    """
    for name in parts.tensors:
        if name.endswith(".qweight"):
            _take(parts, name.removesuffix("qweight"), config)


def _take(parts: Parts, stem: str, config: QuantisationConfig | None) -> None:
    names = {role: stem + role for role in _ROLES if role != "g_idx" or stem + role in parts.tensors}
    qweight = names["qweight"]
    packed = parts.need(qweight, qweight, ("I32",))
    scales = parts.need(names["scales"], qweight, FLOATS)
    zeros = parts.need(names["qzeros"], qweight, ("I32",))
    rows, columns = expect_matrix(qweight, packed)
    num_groups, outputs = expect_matrix(names["scales"], scales)
    expect_matrix(names["qzeros"], zeros)
    if columns == outputs:
        form = "gptq"
    elif columns * 8 == outputs:
        form = "awq"
    else:
        raise TensorShapeMismatch(
            f"{qweight} has {columns} columns and {names['scales']} has {outputs}; GPTQ's layout has as many, AWQ's "
            "gemm layout an eighth. Other layouts (gemv, marlin) are not read.",
            param=qweight,
        )
    if config is not None and config.method != form:
        raise UnsupportedFormat(
            f"{config.file} says {config.method}, but {qweight} of shape {list(packed.shape)} beside scales of shape "
            f"{list(scales.shape)} is laid out as {form}.",
            param="quantization_config",
        )
    if form == "gptq":
        _take_gptq(parts, names, config)
    else:
        expect_shape(names["qzeros"], zeros, (num_groups, columns), f"{qweight} and {names['scales']}")
        stated = None if config is None else config.integer("bits", "w_bit")
        if stated not in (None, 4):
            raise UnsupportedFormat(f"{config and config.file}: AWQ with {stated} bits; 4 are read.", param="bits")
        group_size = _group_size(qweight, rows, num_groups, config)
        shape = (outputs, rows)
        kept = choose_scale_dtype(scales, has_zeros=True)
        parts.add(EncodedTensor(stem + "weight", shape, "awq", names, bits=4, group_size=group_size, scales=kept))


def _take_gptq(parts: Parts, names: Mapping[str, str], config: QuantisationConfig | None) -> None:
    qweight = names["qweight"]
    words, outputs = parts.tensors[qweight].shape
    num_groups = parts.tensors[names["scales"]].shape[0]
    zeros = parts.tensors[names["qzeros"]]
    bits = 32 * zeros.shape[1] // outputs
    if bits not in GPTQ_BITS or 32 * zeros.shape[1] != bits * outputs or words * 32 % bits:
        raise TensorShapeMismatch(
            f"{names['qzeros']} of shape {list(zeros.shape)} doesn't fit {qweight} of shape {[words, outputs]} with 2, "
            "3, 4 or 8 bits.",
            param=names["qzeros"],
        )
    inputs = words * 32 // bits
    expect_shape(names["qzeros"], zeros, (num_groups, outputs * bits // 32), f"{qweight} and {names['scales']}")
    if "g_idx" in names:
        expect_shape(
            names["g_idx"],
            parts.need(names["g_idx"], qweight, ("I32", "I64")),
            (inputs,),
            f"{qweight} with {bits} bits",
        )
    allowed = _stated(config, "bits")
    if allowed and bits not in allowed:
        raise TensorShapeMismatch(
            f"{config and config.file} says {' or '.join(map(str, sorted(allowed)))} bits, but {qweight} and "
            f"{names['qzeros']} have shapes {[words, outputs]} and {list(zeros.shape)}, which are {bits} bits.",
            param="bits",
        )
    second = config is not None and "gptq_v2" in (config.values.get("checkpoint_format"), config.values.get("format"))
    group_size = _group_size(qweight, inputs, num_groups, config)
    zero_offset = 0 if second else 1
    roles = dict(names)
    if config is not None and config.values.get("sym") is True:
        middle = (1 << bits - 1) - zero_offset
        eight = sum(middle << bits * place for place in range(8)).to_bytes(bits, "little")
        if is_repeated(parts, zeros, eight):  # then the codes' middle stands for 0, which needs no offset
            parts.ignore(roles.pop("qzeros"))
    order = find_input_order(parts, names.get("g_idx"), group_size)
    kept = choose_scale_dtype(parts.tensors[names["scales"]], has_zeros="qzeros" in roles) if order else ""
    parts.add(
        EncodedTensor(
            qweight.removesuffix("qweight") + "weight", (outputs, inputs), "gptq", roles, bits=bits,
            group_size=group_size, zero_offset=zero_offset, scales=kept, is_permuted=order == "permuted",
        )
    )  # fmt: skip


def _stated(config: QuantisationConfig | None, *keys: str) -> set[int]:
    """Every value that the config has for these keys, with those of single modules (``dynamic``).

    Which module has which isn't looked up: the patterns are a stranger's regular expressions.
    """
    if config is None:
        return set()
    objects: list[Mapping[str, Any]] = [config.values]
    dynamic = config.values.get("dynamic")
    if isinstance(dynamic, Mapping):
        objects += [value for value in dynamic.values() if isinstance(value, Mapping)]
    return {
        whole_number(item[key], f"{config.file}: {key}")
        for item in objects
        for key in keys
        if item.get(key) is not None
    }


def _group_size(qweight: str, inputs: int, num_groups: int, config: QuantisationConfig | None) -> int:
    """Inputs that share a scale.

    Raises:
        TensorShapeMismatch: The config states another, or the number of groups fits none.
    """
    stated = _stated(config, "group_size", "q_group_size")
    for size in sorted(stated):
        size = inputs if size < 1 else size
        if -(-inputs // size) == num_groups:
            return size
    if stated:
        raise TensorShapeMismatch(
            f"{config and config.file} says groups of {' or '.join(map(str, sorted(stated)))}, but {qweight} has "
            f"{inputs} inputs and scales for {num_groups} groups.",
            param="group_size",
        )
    if inputs % num_groups:
        raise TensorShapeMismatch(
            f"{qweight} has {inputs} inputs and scales for {num_groups} groups, which don't divide them; state "
            "group_size in quantize_config.json.",
            param=qweight,
        )
    return inputs // num_groups
