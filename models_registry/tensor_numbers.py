"""Read the numbers of a tensor from its file in pieces, and sum them up; for a child process, as it takes a while.

``StoredTensor`` reads plain formats; ``blazr_site.coded_tensor_child`` decodes the others. A tensor of more than
``MAX_VALUES`` is read at evenly spaced places, and the result says how many values were read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inference.errors import CorruptCheckpoint
from models_registry.plain_formats import PLAIN_BYTES

Array = npt.NDArray[Any]

MAX_VALUES = 1 << 27
"""Values that are read of a tensor; 134 million take some seconds."""
CHUNK_VALUES = 1 << 20
PLACE_VALUES = 1 << 16
"""Neighbours that are read at each place of a larger tensor."""
NUM_BINS = 48
SIGMAS = 4.0
"""The histogram reaches so many standard deviations to both sides of the mean."""


def pieces(count: int, max_values: int) -> Iterator[tuple[int, int]]:
    """Yield the first value and the number of values of each piece that is read of ``count`` values."""
    if count <= max_values:
        for first in range(0, count, CHUNK_VALUES):
            yield first, min(CHUNK_VALUES, count - first)
        return
    places = max(1, max_values // PLACE_VALUES)
    for number in range(places):
        yield number * (count - PLACE_VALUES) // max(1, places - 1), PLACE_VALUES


class Values(Protocol):
    """Values that are read piece by piece, each time from the start."""

    @property
    def count(self) -> int:
        """Number of values."""
        ...

    def values(self, max_values: int) -> Iterator[Array]:
        """Yield the values of each piece that is read, as float64; of more than ``max_values`` at even places."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where the numbers of a tensor are.

    Attributes:
        path: The file.
        begin: Position of the first byte.
        count: Number of values.
    """

    path: str
    dtype: str
    begin: int
    count: int

    def values(self, max_values: int) -> Iterator[Array]:
        """Yield the values of each piece that is read, as float64."""
        with _opened(self.path) as descriptor:
            for first, number in pieces(self.count, max_values):
                yield self.read(descriptor, first, number)

    def read(self, descriptor: int, first: int, number: int) -> Array:
        """Return values as float64.

        Raises:
            CorruptCheckpoint: The file is shorter.
        """
        size = PLAIN_BYTES[self.dtype]
        data = os.pread(descriptor, number * size, self.begin + first * size)
        if len(data) != number * size:
            name = Path(self.path).name
            raise CorruptCheckpoint(f"{name} is shorter than its header says; inspect it again.", param=name)
        with np.errstate(invalid="ignore"):  # casts of NaN that signal
            return _DECODERS[self.dtype](data)


def statistics(tensor: Values, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Sum up a tensor's values.

    Returns:
        ``count`` values of which ``num_read`` were read; numbers of ``zeros``, ``nans`` and ``infinities``; ``min``,
        ``max``, ``mean`` and ``std`` of the finite ones (None: there are none); ``histogram`` (None: all are the same):
        ``low``, ``high``, ``bins``, and how many are ``below`` and ``above``.
    """
    found: dict[str, Any] = {"count": tensor.count, "num_read": 0, "zeros": 0, "nans": 0, "infinities": 0}
    moments = _Moments()
    for values in tensor.values(max_values):
        found["num_read"] += values.size
        found["nans"] += int(np.isnan(values).sum())
        found["infinities"] += int(np.isinf(values).sum())
        found["zeros"] += int(values.size - np.count_nonzero(values))
        with np.errstate(over="ignore", invalid="ignore"):
            moments.add(values[np.isfinite(values)])
    found |= moments.result()
    found["histogram"] = None
    if moments.count and moments.low < moments.high:
        found["histogram"] = _histogram(tensor, moments, max_values)
    return found


def change(before: StoredTensor, after: StoredTensor, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Compare two tensors of the same number of values.

    Returns:
        ``relative``: the norm of the difference over the norm of ``before``; None where that is 0 or values aren't
        finite. ``squares``: the squares of both norms. ``largest``: the greatest difference of one value.
        ``is_equal``, ``count``, ``num_read``.
    """
    difference = norm = largest = 0.0
    is_equal, num_read = True, 0
    with _opened(before.path) as one, _opened(after.path) as other:
        for first, number in pieces(before.count, max_values):
            old, new = before.read(one, first, number), after.read(other, first, number)
            num_read += number
            with np.errstate(over="ignore", invalid="ignore"):
                norm += float(np.dot(old, old))
                if np.array_equal(old, new, equal_nan=True):
                    continue
                is_equal = False
                step = new - old
                difference += float(np.dot(step, step))
                largest = max(largest, float(np.abs(step).max()))
    is_finite = math.isfinite(difference) and math.isfinite(norm)
    return {
        "relative": math.sqrt(difference / norm) if is_finite and norm > 0 else None,
        "squares": [difference, norm] if is_finite else None,
        "largest": largest if is_finite else None,
        "is_equal": is_equal,
        "count": before.count,
        "num_read": num_read,
    }


class _opened:
    """A file's descriptor, closed at the end."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        name = Path(self._path).name
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CorruptCheckpoint(f"{name} can't be opened: {error.strerror}.", param=name) from None
        return self._descriptor

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


class _Moments:
    """Least, greatest, mean and variance of values that come in pieces.

    Pieces are joined as in T. F. Chan et al., Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances (1979): sums of squares of large numbers would lose the variance.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Array) -> None:
        """Take a piece of finite values."""
        if not values.size:
            return
        mean = float(values.mean())
        total = self.count + values.size
        apart = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + apart * apart * self.count * values.size / total
        self.mean += apart * values.size / total
        self.count = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def result(self) -> dict[str, float | None]:
        """Return the figures; None where there is no value, or a figure is beyond what a float64 holds."""
        figures = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.std}
        return {name: value if self.count and math.isfinite(value) else None for name, value in figures.items()}


def _histogram(tensor: Values, moments: _Moments, max_values: int) -> dict[str, Any] | None:
    reach = SIGMAS * moments.std
    low, high = max(moments.low, moments.mean - reach), min(moments.high, moments.mean + reach)
    if not (math.isfinite(high - low) and low < high):
        return None
    bins = np.zeros(NUM_BINS, dtype=np.int64)
    below = above = 0
    for values in tensor.values(max_values):
        finite = values[np.isfinite(values)]
        bins += np.histogram(finite, NUM_BINS, (low, high))[0]
        below += int((finite < low).sum())
        above += int((finite > high).sum())
    return {"low": low, "high": high, "bins": bins.tolist(), "below": below, "above": above}


def _plain(code: str) -> Callable[[bytes], Array]:
    return lambda data: np.frombuffer(data, code).astype(np.float64)


def _bfloat16(data: bytes) -> Array:
    """A bfloat16 is the upper half of a float32."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _by_table(table: Array) -> Callable[[bytes], Array]:
    return lambda data: table[np.frombuffer(data, np.uint8)]


def _float8(exponent_bits: int, *, has_infinity: bool) -> Array:
    """Return the values of all 256 codes: E4M3 (no infinity, one NaN) or E5M2 (as IEEE 754).

    Source: P. Micikevicius et al., FP8 Formats for Deep Learning (2022), table 1.
    """
    mantissa_bits, bias = 7 - exponent_bits, (1 << (exponent_bits - 1)) - 1
    found = []
    for code in range(256):
        exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        is_top = exponent == (1 << exponent_bits) - 1
        if has_infinity and is_top:
            value = math.nan if mantissa else math.inf
        elif is_top and mantissa == (1 << mantissa_bits) - 1:
            value = math.nan
        elif exponent:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        else:
            value = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
        found.append(-value if code & 0x80 else value)
    return np.array(found)


_POWERS = np.array([2.0 ** (code - 127) for code in range(255)] + [math.nan])
_DECODERS: Mapping[str, Callable[[bytes], Array]] = {
    "F64": _plain("<f8"), "F32": _plain("<f4"), "F16": _plain("<f2"), "BF16": _bfloat16,
    "F8_E4M3": _by_table(_float8(4, has_infinity=False)), "F8_E5M2": _by_table(_float8(5, has_infinity=True)),
    "F8_E8M0": _by_table(_POWERS),
    "I64": _plain("<i8"), "I32": _plain("<i4"), "I16": _plain("<i2"), "I8": _plain("i1"),
    "U64": _plain("<u8"), "U32": _plain("<u4"), "U16": _plain("<u2"), "U8": _plain("u1"), "BOOL": _plain("u1"),
}  # fmt: skip
