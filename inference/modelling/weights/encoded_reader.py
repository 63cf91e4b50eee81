"""Read weights that the files hold in codes as if they were stored in floats, or in codes that products take."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from inference.errors import MissingTensor, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.layers.coded import Codes, PlainCoded
from inference.modelling.quantisation import stored_form
from inference.modelling.weights.decoding.decode import decode
from inference.modelling.weights.decoding.kept_codes import kept_codes
from inference.modelling.weights.stored_tensor import StoredTensor

MAX_ROW_BYTES = 1 << 20
"""Entries of the first axis above this (experts of a stack) are decoded once and kept until the next one's turn."""


class EncodedReader:
    """One encoded weight, to be read like a tensor of a file, by several threads and in any order.

    The codes are read at the first call and dropped when every byte has been handed out; only pieces are decoded.

    Args:
        item: The weight.
        parts: Its parts by role.
        stored: dtype that the weight seems to be stored in: float32 or bfloat16, to which the values are rounded.
    """

    def __init__(self, item: EncodedTensor, parts: Mapping[str, StoredTensor], stored: torch.dtype) -> None:
        self._item = item
        self._parts = dict(parts)
        first = min(parts.values(), key=lambda part: (part.file, part.start))
        self.file, self.start = first.file, first.start
        self.shape = item.shape
        self.stored: torch.dtype | None = stored
        self._dtype = stored
        count = 1
        for size in item.shape:
            count *= size
        self.size = count * stored.itemsize
        self._row_bytes = self.size // item.shape[0]
        self._lock = threading.Lock()
        self._codes: dict[str, torch.Tensor] | None = None
        self._entry: tuple[int, torch.Tensor] | None = None
        self._num_bytes_left = self.size

    def fill(self, target: memoryview, begin: int) -> None:
        """Decode the weight's bytes from ``begin`` on.

        Raises:
            CorruptCheckpoint: A file ends too early, or indices in it are out of range.
        """
        stop, size = begin + len(target), self._row_bytes
        first, last = begin // size, -(-stop // size)
        if size > MAX_ROW_BYTES:
            for entry in range(first, last):
                low, high = max(begin, entry * size), min(stop, (entry + 1) * size)
                _copy(self._kept_entry(entry), low - entry * size, target[low - begin : high - begin])
        elif len(target):
            values = decode(self._item, self._loaded(), first, last).to(self._dtype).contiguous()
            _copy(values, begin - first * size, target)
        self._hand_out(len(target))

    def codes(self, first: int, count: int) -> Codes:
        """Rows in codes, the matrices of a stack one below the other; for forms that ``stored_form`` has.

        Raises:
            CorruptCheckpoint: A file ends too early, or ``kept_codes`` refuses it.
        """
        form = stored_form(self._item)
        assert form is not None, self._item.name
        parts = self._loaded()
        if self._item.coding == "blazr":
            cut = {role: part.flatten(0, -2)[first : first + count] for role, part in parts.items()}
            rows = PlainCoded(cut["codes"], cut["scales"], cut.get("offsets"), form, self.shape[-1]).codes()
        else:
            rows = kept_codes(self._item, form, parts, first, first + count)
        self._hand_out(count * self.shape[-1] * self._dtype.itemsize)
        return rows

    def _kept_entry(self, entry: int) -> torch.Tensor:
        codes = self._loaded()
        with self._lock:
            if self._entry is None or self._entry[0] != entry:
                values = decode(self._item, codes, entry, entry + 1).to(self._dtype).contiguous()
                self._entry = entry, values
            return self._entry[1]

    def _hand_out(self, num_bytes: int) -> None:
        """Drop the codes once the whole weight has been read."""
        with self._lock:
            self._num_bytes_left -= num_bytes
            if self._num_bytes_left <= 0:  # it may be read once more, for another parameter
                self._codes = self._entry = None
                self._num_bytes_left = self.size

    def _loaded(self) -> dict[str, torch.Tensor]:
        with self._lock:
            if self._codes is None:
                self._codes = {role: _read(part) for role, part in self._parts.items()}
            return self._codes


def encoded_readers(
    items: Sequence[EncodedTensor], stored: Mapping[str, StoredTensor], dtype: torch.dtype
) -> dict[str, EncodedReader]:
    """A reader for each encoded weight, by the weight's name.

    Args:
        items: The weights.
        stored: All tensors of the files.
        dtype: What the readers seem to hold.

    Raises:
        MissingTensor: A part isn't there.
        UnsupportedFormat: A part is of none of torch's dtypes.
    """
    readers = {}
    for item in items:
        for name in item.parts.values():
            if name not in stored:
                raise MissingTensor(f"tensor {name} is missing from the checkpoint.", param=name)
            if stored[name].stored is None:
                raise UnsupportedFormat(f"tensor {name} has a dtype that can't be read.", param=name)
        readers[item.name] = EncodedReader(item, {role: stored[name] for role, name in item.parts.items()}, dtype)
    return readers


def _read(part: StoredTensor) -> torch.Tensor:
    content = torch.empty(part.size, dtype=torch.uint8)
    part.fill(memoryview(cast("Any", content.numpy())), 0)
    assert part.stored is not None
    return content.view(part.stored).view(part.shape)


def _copy(values: torch.Tensor, begin: int, target: memoryview) -> None:
    """Bytes of ``values`` from ``begin`` on."""
    content = values.view(-1).view(torch.uint8)
    torch.frombuffer(target, dtype=torch.uint8).copy_(content[begin : begin + len(target)])
