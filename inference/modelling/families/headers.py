"""Read dtypes and shapes of single tensors from headers, and list tensor names in messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.config import MAX_SIZE, TensorTable
from inference.modelling.gguf.block_types import COMPUTED_TYPES
from inference.modelling.specs.parts import Dtype

STORED_DTYPES: Mapping[str, Dtype] = {
    "F32": "float32",
    "F64": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    **dict.fromkeys(COMPUTED_TYPES, "bfloat16"),
}
"""safetensors' spelling, or GGUF's type, to the dtype that a spec knows."""

_MAX_NAMES_SHOWN = 5


def matrix_shape(tensors: TensorTable, name: str) -> tuple[int, int]:
    """(rows, columns) of a tensor that has to be a matrix.

    Raises:
        MissingTensor: It isn't there.
        TensorShapeMismatch: It isn't a matrix, or larger than any layer.
    """
    shape = tensors.shape(name)
    if len(shape) != 2 or min(shape) < 1 or max(shape) > MAX_SIZE:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; a matrix is needed.", param=name)
    return shape[0], shape[1]


def stack_shape(tensors: TensorTable, name: str) -> tuple[int, int, int]:
    """(matrices, rows, columns) of a tensor that has to be a stack of matrices.

    Raises:
        MissingTensor: It isn't there.
        TensorShapeMismatch: It isn't such a stack, or larger than any layer's.
    """
    shape = tensors.shape(name)
    if len(shape) != 3 or min(shape) < 1 or max(shape) > MAX_SIZE:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; three axes are needed.", param=name)
    return shape[0], shape[1], shape[2]


def vector_length(tensors: TensorTable, name: str) -> int:
    """Length of a tensor that has to be a vector.

    Raises:
        MissingTensor: It isn't there.
        TensorShapeMismatch: It isn't a vector, or longer than any layer's.
    """
    shape = tensors.shape(name)
    if len(shape) != 1 or not 1 <= shape[0] <= MAX_SIZE:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; a vector is needed.", param=name)
    return shape[0]


def sample_of(names: Collection[str]) -> str:
    """The first few names, shortened: whoever wrote the file chose how many and how long they are."""
    if not names:
        return "there are none"
    ordered = sorted(names)
    shown = ", ".join(name[:80] for name in ordered[:_MAX_NAMES_SHOWN])
    # A name may have halves of surrogate pairs, which no output can encode.
    shown = shown.encode("utf-8", "backslashreplace").decode()
    return shown + (", …" if len(ordered) > _MAX_NAMES_SHOWN else "")
