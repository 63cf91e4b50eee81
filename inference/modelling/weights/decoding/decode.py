"""Decode an encoded weight, whichever its coding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.layers.coded import PlainCoded, packed_rows
from inference.modelling.quantisation import FormName, own_form
from inference.modelling.weights.decoding.floats import decode_bnb4, decode_fp4, decode_scaled
from inference.modelling.weights.decoding.integers import (
    decode_hqq,
    unpack_awq_rows,
    unpack_gptq_rows,
    unpack_packed_int_rows,
)
from inference.modelling.weights.decoding.ternary import decode_bitnet


def _decode_own(item: EncodedTensor, parts: Mapping[str, torch.Tensor], begin: int, stop: int) -> torch.Tensor:
    """Codes times scales, and offsets of kept codes, as ``blazr quantise`` has written them."""
    codes, scales = parts["codes"][begin:stop], parts["scales"][begin:stop]
    if not item.form:
        offsets = parts["offsets"][begin:stop] if "offsets" in parts else None
        return PlainCoded(codes, scales, offsets, own_form(item), item.shape[-1]).dense(torch.float32)
    return packed_rows(codes, scales, cast("FormName", item.form), item.shape[-1]).dense(torch.float32)


_DECODERS: Mapping[str, Callable[[EncodedTensor, Mapping[str, torch.Tensor], int, int], torch.Tensor]] = {
    "gptq": lambda *args: unpack_gptq_rows(*args).dense(),
    "awq": lambda *args: unpack_awq_rows(*args).dense(),
    "packed_int": lambda *args: unpack_packed_int_rows(*args).dense(),
    "scaled": decode_scaled,
    "fp4": decode_fp4,
    "bnb4": decode_bnb4,
    "hqq": decode_hqq,
    "bitnet": decode_bitnet,
    "blazr": _decode_own,
}


def decode(
    item: EncodedTensor, parts: Mapping[str, torch.Tensor], begin: int = 0, stop: int | None = None
) -> torch.Tensor:
    """Values of a weight.

    Args:
        item: What it is.
        parts: The tensors of the files by their roles, in the shapes that detection has checked.
        begin, stop: Entries of the first axis (outputs of a matrix, experts of a stack); None: to the end.

    Returns:
        (stop - begin, …) float32.

    Raises:
        CorruptCheckpoint: Indices in the parts are out of range.
    """
    return _DECODERS[item.coding](item, parts, begin, item.shape[0] if stop is None else stop)
