"""Header entries of tensors that lie in memory, and a reader of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from inference.modelling.encodings.parts import ReadBytes
from inference.modelling.encodings.quantisation_config import read_quantisation_config
from inference.modelling.encodings.table import DecodedTable, decode_table
from inference.modelling.families.config import Facts, TensorInfo

SPELLINGS = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int8: "I8", torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def headers(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, TensorInfo], ReadBytes]:
    """Entries as if the tensors lay in one file, and what reads them."""
    content, found = b"", {}
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        begin = len(content)
        content += raw
        found[name] = TensorInfo(SPELLINGS[tensor.dtype], tuple(tensor.shape), "a", begin, len(content))
    return found, lambda info: content[info.begin : info.end]


def decoded_table(
    tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None, facts: Facts | None = None
) -> DecodedTable:
    """The table of a checkpoint with these tensors and this ``quantization_config``."""
    found, read = headers(tensors)
    stated = None if config is None else read_quantisation_config(config)
    return decode_table(found, stated, read, Facts() if facts is None else facts)
