"""Recognise bitsandbytes' four-bit weights: NF4 and FP4, with plain or doubly quantised scales.

Source: bitsandbytes' ``QuantState.as_dict(packed=True)``: codes, ``absmax`` and ``quant_map`` are tensors, the rest is
JSON in a tensor of bytes named after the code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.byte_levels import byte_levels
from inference.modelling.encodings.parts import FLOATS, Parts, num_bytes, num_values, read_floats
from inference.modelling.encodings.quantisation_config import QuantisationConfig
from inference.modelling.families.config import MAX_SIZE

_STATE = ".quant_state.bitsandbytes__"
_STORAGE = ("U8", "I8", "F16", "BF16", "F32")
"""dtypes that hold the bytes of codes (bnb_4bit_quant_storage)."""
MAX_STATE_BYTES = 4096


def find_bitsandbytes(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every weight that has a state of bitsandbytes beside it.

    Raises:
        CheckpointError: A companion is missing or broken, or contradicts the codes or the config.
    """
    for name in parts.tensors:
        if name.endswith(".absmax") and not name.endswith(".nested_absmax"):
            _take(parts, name.removesuffix(".absmax"), config)


def _take(parts: Parts, name: str, config: QuantisationConfig | None) -> None:
    if config is not None and config.method != "bitsandbytes":
        raise UnsupportedFormat(
            f"{config.file} says {config.method}, but {name}.absmax belongs to bitsandbytes.",
            param="quantization_config",
        )
    codes = parts.need(name, name + ".absmax", _STORAGE)
    kind = next((kind for kind in ("nf4", "fp4") if name + _STATE + kind in parts.tensors), "nf4")
    state_name = name + _STATE + kind
    state = _state(parts, state_name, name)
    absmax = parts.need(name + ".absmax", name, (*FLOATS, "U8"))
    quant_map = parts.need(name + ".quant_map", name, FLOATS)
    shape = _sizes(state, state_name)
    count, block = math.prod(shape), _number(state, "blocksize", state_name)
    stated = None if config is None else config.values.get("bnb_4bit_quant_type")
    if stated not in (None, kind):
        raise UnsupportedFormat(
            f"{config and config.file} says bnb_4bit_quant_type {str(stated)[:40]!r}, but {name} is stored as {kind}.",
            param="bnb_4bit_quant_type",
        )
    problem = None
    if num_bytes(codes) * 2 != count + count % 2:
        problem = f"{name} has shape {list(codes.shape)} ({codes.dtype})"
    elif num_values(absmax) != -(-count // block):
        problem = f"{name}.absmax has shape {list(absmax.shape)}"
    elif num_values(quant_map) != 16:
        problem = f"{name}.quant_map has shape {list(quant_map.shape)}"
    if problem is not None:
        raise TensorShapeMismatch(
            f"{problem}, but {state_name} says {list(shape)} weights in blocks of {block}.", param=name
        )
    names = {"packed": name, "absmax": name + ".absmax", "quant_map": name + ".quant_map"}
    offset, nested_size = 0.0, 0
    if absmax.dtype == "U8":
        nested_size = _number(state, "nested_blocksize", state_name)
        offset = _offset(state, state_name)
        for part, size in (("nested_absmax", -(-num_values(absmax) // nested_size)), ("nested_quant_map", 256)):
            info = parts.need(f"{name}.{part}", name, FLOATS)
            if num_values(info) != size:
                raise TensorShapeMismatch(
                    f"{name}.{part} has shape {list(info.shape)}; {size} numbers are needed by {state_name}.",
                    param=f"{name}.{part}",
                )
            names[part] = f"{name}.{part}"
    found = byte_levels(read_floats(parts, quant_map))
    parts.add(
        EncodedTensor(
            name, shape, "bnb4", names, bits=4, group_size=block, offset=offset, nested_size=nested_size,
            scales="float16" if found else "", levels=found[0] if found else (),
        )
    )  # fmt: skip
    parts.ignore(state_name)


def _state(parts: Parts, state_name: str, owner: str) -> Mapping[str, Any]:
    """The JSON beside the codes."""
    info = parts.need(state_name, owner, ("U8",))
    content = parts.read(info) if num_values(info) <= MAX_STATE_BYTES else b""
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, Mapping):
        raise CorruptCheckpoint(
            f"{state_name} is not a JSON object of at most {MAX_STATE_BYTES} bytes.", param=state_name
        )
    return state


def _number(state: Mapping[str, Any], key: str, state_name: str) -> int:
    value = state.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise CorruptCheckpoint(f"{state_name}: {key} is {str(value)[:40]!r}; a size is needed.", param=state_name)
    return value


def _sizes(state: Mapping[str, Any], state_name: str) -> tuple[int, ...]:
    value = state.get("shape")
    if (
        not isinstance(value, list)
        or len(value) not in (2, 3)
        or not all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_SIZE for size in value)
    ):
        raise CorruptCheckpoint(f"{state_name}: shape is {str(value)[:40]!r}; two sizes are needed.", param=state_name)
    return tuple(value)


def _offset(state: Mapping[str, Any], state_name: str) -> float:
    value = state.get("nested_offset")
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 < value < 1e9:
        raise CorruptCheckpoint(
            f"{state_name}: nested_offset is {str(value)[:40]!r}; a number is needed.", param=state_name
        )
    return float(value)
