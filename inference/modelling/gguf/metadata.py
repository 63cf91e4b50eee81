"""Metadata: typed access to the keys of a GGUF file under its architecture's name.

Keys are untrusted: every reader checks type and range. Standard library only.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.gguf.container import GgufArray
from inference.modelling.gguf.parts import GgufParts

MAX_INTEGER = 1 << 31
MAX_VALUES = 1 << 16
"""Of an array that is read into the config."""
MAX_FACTORS = 1 << 11
"""Of a tensor that is read into the config: one for each pair of a head's rotated values."""


class Metadata:
    """The keys ``<architecture>.<name>``, by their name.

    Attributes:
        parts: The file.
        architecture: ``general.architecture``.

    Raises:
        UnsupportedArchitecture: The file names no architecture.
    """

    def __init__(self, parts: GgufParts) -> None:
        self.parts = parts
        stated = parts.keys.get("general.architecture")
        if not isinstance(stated, str) or not stated:
            raise UnsupportedArchitecture(
                f"{parts.head.path.name} has no general.architecture, so its tensors can't be understood; convert the "
                "model again with a recent converter.",
                param="general.architecture",
            )
        self.architecture = stated

    def integer(self, name: str, *, whole_key: bool = False) -> int | None:
        """A number from 0 on; None: the key is missing. With ``whole_key`` the name is the key itself."""
        key = name if whole_key else self._key(name)
        value = self.parts.keys.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
            raise self._bad(key, value, f"a whole number from 0 to {MAX_INTEGER}")
        return value

    def number(self, name: str) -> float | None:
        """A number, as its shortest decimal spelling says it: 1e-05 rather than 9.99999974e-06."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, value, "a number")
        return shortest(value)

    def string(self, name: str) -> str | None:
        """A string; None: the key is missing."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if value is not None and not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value

    def boolean(self, name: str) -> bool | None:
        """True or false; None: the key is missing."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def per_layer(self, name: str) -> list[int]:
        """A number of each layer, whether it is stated once or layer by layer; empty: the key is missing."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if not isinstance(value, GgufArray):
            single = self.integer(name)
            return [] if single is None else [single] * (self.integer("block_count") or 0)
        if value.count > MAX_VALUES:
            raise self._bad(key, f"{value.count} values", f"at most {MAX_VALUES} values")
        found = self.parts.head.numbers(key)
        numbers = [item for item in found if isinstance(item, int) and 0 <= item <= MAX_INTEGER]
        if len(numbers) != len(found) or len(numbers) != self.integer("block_count"):
            raise self._bad(key, f"{len(found)} values", "a whole number for each layer")
        return numbers

    def numbers(self, name: str) -> list[float]:
        """The numbers of an array, infinities among them; empty: the key is missing."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if value is None:
            return []
        if not isinstance(value, GgufArray) or value.count > MAX_VALUES:
            raise self._bad(key, value, f"an array of at most {MAX_VALUES} numbers")
        return [float(item) for item in self.parts.head.numbers(key)]

    def flags(self, name: str) -> list[bool] | int | None:
        """True or false of each layer, or a number that tells them; None: the key is missing."""
        key = self._key(name)
        value = self.parts.keys.get(key)
        if not isinstance(value, GgufArray):
            return self.integer(name)
        if value.count > MAX_VALUES:
            raise self._bad(key, f"{value.count} values", f"at most {MAX_VALUES} values")
        return [bool(item) for item in self.parts.head.numbers(key)]

    def floats(self, tensor: str) -> list[float]:
        """The values of a small float32 tensor that belongs to the config; empty: it isn't there."""
        found = self.parts.tensors.get(tensor)
        if found is None:
            return []
        number, place = found
        size = place.end - place.begin
        if place.block_type.name != "F32" or size > 4 * MAX_FACTORS:
            raise CorruptCheckpoint(
                f"{tensor} is stored as {place.block_type.name} with {size} bytes; at most {MAX_FACTORS} values in F32 "
                "are expected.",
                param=tensor,
            )
        path = self.parts.files[number].path
        try:
            with path.open("rb") as file:
                data = os.pread(file.fileno(), size, place.begin)
        except OSError as error:
            raise CorruptCheckpoint(f"{path.name} can't be read: {error.strerror}.", param=path.name) from None
        if len(data) != size:
            raise CorruptCheckpoint(f"{path.name} became shorter while it was read.", param=path.name)
        return [shortest(value) for value in struct.unpack(f"<{size // 4}f", data)]

    def has_tensor(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self.parts.tensors

    def rows(self, name: str) -> int | None:
        """Rows of a tensor; None: it isn't there."""
        found = self.parts.tensors.get(name)
        return found[1].shape[0] if found is not None else None

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    @staticmethod
    def _bad(key: str, value: Any, expected: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the GGUF key {key} is {str(value)[:60]!r}; it must be {expected}.", param=key)


def shortest(value: float) -> float:
    """The decimal with the fewest digits that is this float32: what the file's writer most likely had."""
    for digits in range(1, 9):
        candidate = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", candidate) == struct.pack("<f", value):
                return candidate
        except OverflowError:
            break
    return float(value)
