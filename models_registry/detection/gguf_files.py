"""Read a GGUF file for the inspection: tensors and config as families read them, and facts about the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.families.config import Facts, TensorInfo
from inference.modelling.gguf.architectures import GgufCheckpoint, read_checkpoint
from inference.modelling.gguf.block_types import BLOCK_TYPES, COMPUTED_TYPES
from inference.modelling.gguf.tensors import CheckpointTensor
from inference.modelling.quantisation import GGUF_FORMS
from models_registry.detection.directory import CheckpointDirectory
from models_registry.detection.ggjt_files import record_ggjt

METADATA = "the file's metadata"
"""What stands for config.json in facts and messages."""

FILE_TYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0",
}  # fmt: skip
"""``general.file_type``: the recipe by which a file was quantised, most of whose tensors have the type of that name."""


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """A GGUF file as a checkpoint.

    Attributes:
        config: What config.json would have.
        tensors: Header entries under the names that the tensors had.
        encoded: Those whose codes can be computed with as they are.
    """

    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    encoded: tuple[EncodedTensor, ...]


def read_gguf_checkpoint(resolved: CheckpointDirectory, facts: Facts) -> GgufFiles:
    """Read the headers and record what the file is.

    Raises:
        CheckpointError: As ``read_checkpoint``.
    """
    found = read_checkpoint([resolved.directory / name for name in resolved.weight_files])
    _record(found, facts)
    tensors = {name: _info(tensor, resolved.weight_files) for name, tensor in found.tensors.items()}
    encoded = tuple(
        EncodedTensor(name, tensor.shape, "gguf", {}, type=kind, keeps_blocks=tensor.keeps_blocks)
        for name, tensor in found.tensors.items()
        if (kind := tensor.code_type) in GGUF_FORMS and kind is not None
    )
    return GgufFiles(dict(found.config), tensors, encoded)


def _info(tensor: CheckpointTensor, files: tuple[str, ...]) -> TensorInfo:
    """An entry; of a tensor in several pieces, the place of the first."""
    first = tensor.segments[0]
    return TensorInfo(
        tensor.type_name, tensor.shape, files[first.part], first.begin, first.begin + first.rows * first.row_bytes
    )


def _record(found: GgufCheckpoint, facts: Facts) -> None:
    head, parts = found.parts.head, len(found.parts.files)
    evidence = f"version {head.version}, {len(head.keys)} keys, {len(found.parts.tensors)} tensors"
    facts.add("file_format", head.format, evidence + (f" in {parts} parts" if parts > 1 else ""))
    if head.format == "ggjt":
        record_ggjt(head, facts)
    facts.add("gguf.architecture", found.architecture, "general.architecture")
    recipe = head.keys.get("general.file_type")
    if isinstance(recipe, int):
        facts.add("gguf.file_type", FILE_TYPES.get(recipe, str(recipe)), f"general.file_type is {recipe}")
    sizes: Counter[str] = Counter()
    for _, place in found.parts.tensors.values():
        sizes[BLOCK_TYPES[place.type].name] += place.end - place.begin
    total = sum(sizes.values()) or 1
    shares = ", ".join(f"{name} {round(100 * size / total)} %" for name, size in sizes.most_common())
    facts.add("quantisation", shares, "types of the tensors, by bytes")
    expanded = [name for name in sizes if name in COMPUTED_TYPES and name not in GGUF_FORMS]
    if expanded:
        facts.warn(
            f"tensors are stored as {', '.join(expanded)}, for which there are no kernels: their values are expanded "
            "while they are loaded and take more memory than the file; the setting quant says how much."
        )
