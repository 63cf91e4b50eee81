"""Collect the encoded tensors of a checkpoint and the tensors that belong to each."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.families.config import MAX_SIZE, TensorInfo

InputOrder = Literal["neighbours", "permuted"]
ReadBytes = Callable[[TensorInfo], bytes]
"""Reads a small tensor's bytes; raises CorruptCheckpoint if the file is too short or the tensor isn't small."""

FLOATS = ("F32", "F16", "BF16", "F64")
EXPONENTS = ("U8", "F8_E8M0")
"""dtypes of scales that are powers of two: 2^(byte - 127)."""
_MAX_SMALL_BYTES = 1 << 18
"""Most that is read at once. A larger ``g_idx`` isn't read, and its weight is expanded."""
_FUSED = {"gate_up_proj": 2, "qkv_proj": 3}
"""Projections that hold several matrices, and how many."""
_WEIGHTS = ("weight", "weight_packed")
_LEAST_GROUP = 16
"""Products take no smaller groups, so their order doesn't matter."""


class Parts:
    """What of the tensors has been understood so far.

    Args:
        tensors: All tensors of the files.
        read: Reads a small one.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], read: ReadBytes) -> None:
        self.tensors = tensors
        self.read = read
        self.encoded: dict[str, EncodedTensor] = {}
        self.taken: set[str] = set()

    def find(self, name: str) -> TensorInfo | None:
        """A tensor that may be there."""
        return self.tensors.get(name)

    def need(self, name: str, owner: str, dtypes: Sequence[str]) -> TensorInfo:
        """A tensor without which ``owner`` can't be decoded.

        Raises:
            MissingTensor: It isn't there.
            UnsupportedFormat: It is of another dtype.
        """
        info = self.tensors.get(name)
        if info is None:
            raise MissingTensor(
                f"{owner} holds codes, but {name}, which they need, is missing; download the checkpoint again.",
                param=name,
            )
        if info.dtype not in dtypes:
            raise UnsupportedFormat(
                f"{name} is stored as {info.dtype}; {' or '.join(dtypes)} is needed beside {owner}.", param=name
            )
        return info

    def add(self, encoded: EncodedTensor) -> None:
        """Take an encoded tensor and its parts.

        Raises:
            TensorShapeMismatch: It has an impossible size, or is there twice.
        """
        if encoded.name in self.encoded or (
            encoded.name in self.tensors and encoded.name not in encoded.parts.values()
        ):
            raise TensorShapeMismatch(
                f"{encoded.name} is stored twice: in codes ({', '.join(encoded.parts.values())}) and in another form.",
                param=encoded.name,
            )
        if not encoded.shape or min(encoded.shape) < 1 or max(encoded.shape) > MAX_SIZE:
            raise TensorShapeMismatch(
                f"{encoded.name} has shape {list(encoded.shape)} by its codes; a matrix is needed.", param=encoded.name
            )
        self.encoded[encoded.name] = encoded
        self.taken.update(encoded.parts.values())

    def ignore(self, *names: str) -> None:
        """Leave out tensors that the arithmetic of the weights doesn't need, where they are there."""
        self.taken.update(name for name in names if name in self.tensors)


def expect_shape(name: str, info: TensorInfo, expected: Sequence[int], why: str) -> None:
    """Check a part's shape.

    Raises:
        TensorShapeMismatch: It has another.
    """
    if tuple(info.shape) != tuple(expected):
        raise TensorShapeMismatch(
            f"{name} has shape {list(info.shape)}; {list(expected)} is needed by {why}.", param=name
        )


def expect_matrix(name: str, info: TensorInfo) -> tuple[int, int]:
    """Rows and columns of a part.

    Raises:
        TensorShapeMismatch: It is no matrix.
    """
    if len(info.shape) != 2 or min(info.shape) < 1 or max(info.shape) > MAX_SIZE * 8:
        raise TensorShapeMismatch(f"{name} has shape {list(info.shape)}; a matrix is needed.", param=name)
    return info.shape[0], info.shape[1]


def fused_rows(parts: Parts, name: str, scale: Sequence[int]) -> tuple[int, ...]:
    """Rows of each of the matrices that lie one below the other in a weight, if each has a scale for the whole.

    These are gate and up, or q, k and v: as many rows as the projection behind the attention has inputs are q's.

    Args:
        name: Of the codes.
        scale: Shape of the scales.

    Returns:
        Empty: the weight is no such, or there is no such projection beside q, k and v.
    """
    base, _, leaf = name.rpartition(".")[0].rpartition(".")
    shape = parts.tensors[name].shape
    if len(shape) != 2 or tuple(scale) != (_FUSED.get(leaf),) or shape[0] <= scale[0]:
        return ()
    behind = next(
        (parts.tensors[other] for end in _WEIGHTS if (other := f"{base}.o_proj.{end}") in parts.tensors), None
    )
    sizes: tuple[int, ...] = (0,)
    if leaf == "gate_up_proj":
        sizes = (shape[0] // 2,) * 2
    elif behind is not None:
        queries = behind.shape[-1] * (2 if behind.dtype == "U8" else 1)  # bytes of two codes
        sizes = (queries, *((shape[0] - queries) // 2,) * 2)
    return sizes if min(sizes) > 0 and sum(sizes) == shape[0] else ()


def num_values(info: TensorInfo) -> int:
    """Number of values of a tensor."""
    return math.prod(info.shape)


def num_bytes(info: TensorInfo) -> int:
    """Bytes of a tensor, which its header has been checked to be those of its shape and dtype."""
    return info.end - info.begin


def choose_scale_dtype(scale: TensorInfo, *, has_zeros: bool) -> Literal["float16", "bfloat16"]:
    """Choose the dtype of the scales and offsets that are kept beside codes.

    bfloat16 where it is exact. Otherwise float16, whose three more bits offsets need: they are many times a scale.
    """
    return "bfloat16" if scale.dtype in ("BF16", *EXPONENTS) and not has_zeros else "float16"


def find_input_order(parts: Parts, name: str | None, group_size: int) -> InputOrder | None:
    """How inputs share groups by their ``g_idx``; without one, or if it holds zeros only, as some write it, in order.

    Args:
        parts: The checkpoint.
        name: Of the tensor, int32 or int64; None: there is none. One of more than ``_MAX_SMALL_BYTES`` isn't looked at
            and counts as no order.
        group_size: Inputs of a group.

    Returns:
        ``neighbours``: those next to each other share one. ``permuted``: as many inputs, from anywhere, share each.
        None: neither.

    Raises:
        CorruptCheckpoint: It names a group that isn't there.
    """
    if name is None:
        return "neighbours"
    info = parts.tensors[name]
    if info.end - info.begin > _MAX_SMALL_BYTES or group_size < _LEAST_GROUP:
        return None
    groups = struct.unpack(f"<{num_values(info)}{'q' if info.dtype == 'I64' else 'i'}", parts.read(info))
    in_order = tuple(number // group_size for number in range(len(groups)))
    wrong = next((group for group in groups if not 0 <= group <= in_order[-1]), None)
    if wrong is not None:
        raise CorruptCheckpoint(
            f"{name} holds {wrong}; the weight has {in_order[-1] + 1} groups. Download the checkpoint again.",
            param=name,
        )
    if groups == in_order or not any(groups):
        return "neighbours"
    return "permuted" if tuple(sorted(groups)) == in_order else None


def is_repeated(parts: Parts, info: TensorInfo, pattern: bytes) -> bool:
    """Whether a tensor holds nothing but a pattern that is repeated; it is read piece by piece until it differs."""
    step = _MAX_SMALL_BYTES // len(pattern) * len(pattern)
    for begin in range(info.begin, info.end, step):
        content = parts.read(replace(info, begin=begin, end=min(begin + step, info.end)))
        if content != (pattern * (step // len(pattern)))[: len(content)]:
            return False
    return True


def read_floats(parts: Parts, info: TensorInfo) -> tuple[float, ...]:
    """Values of a small tensor of one of ``FLOATS``."""
    content = parts.read(info)
    if info.dtype == "BF16":  # the upper halves of float32
        content = b"".join(b"\0\0" + content[at : at + 2] for at in range(0, len(content), 2))
    letter = {"F64": "d", "F16": "e"}.get(info.dtype, "f")
    return struct.unpack(f"<{num_values(info)}{letter}", content)
