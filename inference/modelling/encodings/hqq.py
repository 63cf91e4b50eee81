"""Recognise HQQ's weights: ``W_q`` with ``scale``, ``zero`` and its settings, each a small tensor of its own.

Source: HQQLinear's state dict as safetensors holds it, and the packing of ``hqq/core/bitpack.py``.
"""

from __future__ import annotations

import math

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import FLOATS, Parts, choose_scale_dtype, num_bytes, num_values
from inference.modelling.encodings.quantisation_config import QuantisationConfig
from inference.modelling.families.config import MAX_SIZE

CODES_PER_WORD = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
"""Bits to codes in a word: bytes, but int32 for 3 bits."""
_INTEGERS = {"U8": 1, "I8": 1, "BOOL": 1, "I16": 2, "I32": 4, "I64": 8}
_SETTINGS = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "channel_wise", "optimize", "round_zero", "stores_quant_config", "offload_meta",
    "encoded_state_dict",
)  # fmt: skip


def find_hqq(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every ``….W_q`` with its companions.

    Raises:
        CheckpointError: A companion is missing, or the settings contradict the codes or the config.
    """
    for name in parts.tensors:
        if name.endswith(".W_q"):
            _take(parts, name, config)


def _take(parts: Parts, name: str, config: QuantisationConfig | None) -> None:
    if config is not None and config.method != "hqq":
        raise UnsupportedFormat(
            f"{config.file} says {config.method}, but {name} belongs to hqq.", param="quantization_config"
        )
    stem = name.removesuffix("W_q")
    for flag in ("quant_scale", "quant_zero"):
        if _is_set(parts, stem + flag, name):
            raise UnsupportedFormat(
                f"{stem}{flag} is set: scales in codes of their own are not read. HQQ writes no such safetensors, and "
                f"its later versions make no such scales; quantise again without {flag}.",
                param=stem + flag,
            )
    (bits,) = _integers(parts, stem + "nbits", name)[:1]
    (axis,) = _integers(parts, stem + "axis", name)[:1]
    shape = _integers(parts, stem + "shape", name)
    if bits not in CODES_PER_WORD or axis not in (0, 1):
        raise UnsupportedFormat(
            f"{name} has {bits} bits along axis {axis}; 1, 2, 3, 4 or 8 bits and axes 0 and 1 are read.", param=name
        )
    if len(shape) != 2 or not all(1 <= size <= MAX_SIZE for size in shape):
        raise CorruptCheckpoint(f"{stem}shape says {list(shape)[:4]}; two sizes are needed.", param=stem + "shape")
    _check_config(config, bits, name)
    word = 4 if bits == 3 else 1
    is_view = _is_set(parts, stem + "view_as_float", name)
    codes = parts.need(name, name, FLOATS if is_view else ("I32",) if bits == 3 else ("U8",))
    columns = num_bytes(codes) // word // max(math.prod(codes.shape[:-1]), 1) if codes.shape else 0
    scale = parts.need(stem + "scale", name, FLOATS)
    zero = parts.need(stem + "zero", name, FLOATS)
    count, num_scales = math.prod(shape), num_values(scale)
    if num_scales < 1 or count % num_scales or num_values(zero) not in (1, num_scales):
        raise TensorShapeMismatch(
            f"{stem}scale and {stem}zero have {num_scales} and {num_values(zero)} numbers, which don't divide the "
            f"{count} weights of {name}.",
            param=stem + "scale",
        )
    group = count // num_scales
    # The packed axis is the first one of the grouped values; 3 bits pad it to full words.
    first = num_scales if axis == 1 else group
    if (*codes.shape[:-1], columns) != (-(-first // CODES_PER_WORD[bits]), count // first) or (
        bits != 3 and first % CODES_PER_WORD[bits]
    ):
        raise TensorShapeMismatch(
            f"{name} has shape {list(codes.shape)}, but {list(shape)} weights of {bits} bits with {num_scales} scales "
            f"are {[-(-first // CODES_PER_WORD[bits]), count // first]}.",
            param=name,
        )
    names = {"packed": name, "scale": stem + "scale", "zero": stem + "zero"}
    kept = choose_scale_dtype(scale, has_zeros=True) if axis == 1 else ""
    parts.add(EncodedTensor(stem + "weight", shape, "hqq", names, bits=bits, group_size=group, axis=axis, scales=kept))
    parts.ignore(*(stem + setting for setting in _SETTINGS))


def _check_config(config: QuantisationConfig | None, bits: int, name: str) -> None:
    inner = {} if config is None else config.values.get("quant_config")
    params = inner.get("weight_quant_params") if isinstance(inner, dict) else None
    stated = params.get("nbits") if isinstance(params, dict) else None
    if stated is not None and stated != bits:
        raise TensorShapeMismatch(
            f"{config and config.file} says nbits {str(stated)[:20]}, but {name} has {bits} bits.", param="nbits"
        )


def _is_set(parts: Parts, flag: str, owner: str) -> bool:
    """Whether a setting that may be left out says yes."""
    return flag in parts.tensors and bool(_integers(parts, flag, owner)[0])


def _integers(parts: Parts, name: str, owner: str) -> tuple[int, ...]:
    """The values of a small tensor of integers."""
    info = parts.need(name, owner, tuple(_INTEGERS))
    width = _INTEGERS[info.dtype]
    if not 1 <= num_values(info) <= 8:
        raise CorruptCheckpoint(f"{name} has shape {list(info.shape)}; 1 to 8 numbers are needed.", param=name)
    content = parts.read(info)
    return tuple(
        int.from_bytes(content[at : at + width], "little", signed=info.dtype.startswith("I"))
        for at in range(0, len(content), width)
    )
