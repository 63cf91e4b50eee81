"""Recognise BitNet's weights of three values: in two bits each, in floats with a scale, or to be rounded at load.

The products of such weights round their inputs to 8 bits by row (``EncodedTensor.coding`` ``bitnet``).

Source: transformers' ``integrations/bitnet.py``: BitLinear, whose scale divides, and AutoBitLinear, whose scale
multiplies, offline, or whose weights are rounded by their mean magnitude, online.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from inference.errors import UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import FLOATS, Parts, choose_scale_dtype, expect_shape
from inference.modelling.encodings.quantisation_config import QuantisationConfig

METHOD = "bitnet"
CODES_PER_BYTE = 4
"""Rows of a matrix that a row of bytes holds: a quarter of the matrix in each pair of bits, the first in the lowest."""
_MATRICES = re.compile(r"(^|\.)layers\.\d+\..*_proj\.weight$")


def find_bitnet(parts: Parts, config: QuantisationConfig | None) -> None:
    """Take every matrix of the layers that the config's kind of linear layer has.

    Raises:
        CheckpointError: A scale is missing or no single number, or a bias would be scaled.
    """
    if config is None or config.method != METHOD:
        return
    is_automatic = config.values.get("linear_class", "bitlinear") == "autobitlinear"
    is_online = is_automatic and config.values.get("quantization_mode", "offline") == "online"
    for name in list(_matrices(parts, config)):
        info = parts.tensors[name]
        if info.dtype == "U8":
            _take(parts, name, (info.shape[0] * CODES_PER_BYTE, info.shape[1]), bits=2, divides=not is_automatic)
        elif info.dtype in FLOATS and is_online:
            parts.add(EncodedTensor(name, info.shape, "bitnet", {"weight": name}, bits=2, scales="float16"))
        elif info.dtype in FLOATS and name + "_scale" in parts.tensors:
            _take(parts, name, info.shape, bits=0, divides=not is_automatic)


def _matrices(parts: Parts, config: QuantisationConfig) -> Iterator[str]:
    kept = config.values.get("modules_to_not_convert") or []
    if not isinstance(kept, list) or not all(isinstance(module, str) for module in kept):
        raise UnsupportedFormat(
            f"{config.file}: modules_to_not_convert is {str(kept)[:60]!r}; it must be a list of names.",
            param="modules_to_not_convert",
        )
    for name, info in parts.tensors.items():
        module = name.removesuffix(".weight")
        is_kept = any(module == other or module.startswith(other + ".") or module.endswith(other) for other in kept)
        if _MATRICES.search(name) and len(info.shape) == 2 and not (is_kept and info.dtype != "U8"):
            yield name


def _take(parts: Parts, name: str, shape: tuple[int, ...], *, bits: int, divides: bool) -> None:
    scale = parts.need(name + "_scale", name, FLOATS)
    if scale.shape != ():
        expect_shape(name + "_scale", scale, (1,), name)
    bias = name.removesuffix("weight") + "bias"
    if not divides and bias in parts.tensors:
        raise UnsupportedFormat(
            f"{bias} is there, which transformers multiplies by {name}_scale too (autobitlinear, offline) and others "
            "don't; remove biases that are zeros.",
            param=bias,
        )
    role = "codes" if bits else "weight"
    kept = "" if not bits else "float16" if divides else choose_scale_dtype(scale, has_zeros=False)
    names = {role: name, "scale": name + "_scale"}
    parts.add(EncodedTensor(name, shape, "bitnet", names, bits=bits, divides=divides, scales=kept))
