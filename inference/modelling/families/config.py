"""CheckpointView: the config, the tensor table and the facts of a checkpoint, as a family reads them.

Standard library only. Values from config.json are untrusted: every reader here checks type and
range, so that no size reaches an allocation unchecked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from inference.errors import CorruptCheckpoint, MissingTensor

MAX_SIZE = 1 << 24
MAX_LAYERS = 4096
_MAX_NUMBER = 1e300
"""Largest magnitude in a list of numbers. Larger integers may not fit into a float."""
_MISSING = object()


class Confidence(StrEnum):
    """How sure a fact is."""

    OVERRIDE = "override"  # a person said so
    CERTAIN = "certain"  # written in the checkpoint, or the only reading
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"  # inferred from usual sizes, or a default; the operator should check it


@dataclass(frozen=True, slots=True)
class Fact:
    """One detected property, with the reason to believe it.

    Attributes:
        name: Stable key, e.g. ``vocabulary``, ``attention.head_dim``.
        value: A JSON value.
        evidence: One phrase, e.g. "vocab_size is exactly 128354 (llama3 with agent tokens)".
    """

    name: str
    value: Any
    evidence: str
    confidence: Confidence

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "evidence": self.evidence,
            "confidence": str(self.confidence),
        }


@dataclass(slots=True)
class Facts:
    """Collector of facts and warnings during one inspection. ``overrides`` come from a person and win."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, evidence: str, confidence: Confidence = Confidence.CERTAIN) -> Any:
        """Note a fact and return the value to use: the override's, if there is one."""
        if name in self.overrides:
            value, evidence, confidence = self.overrides[name], "set by the operator", Confidence.OVERRIDE
        self._record(Fact(name, value, evidence, confidence))
        return value

    def add_override(self, name: str, value: Any, evidence: str) -> None:
        """Note an overridden fact with a description as its value, and with what it replaces as evidence."""
        self._record(Fact(name, value, evidence, Confidence.OVERRIDE))

    def _record(self, fact: Fact) -> None:
        self.facts = [other for other in self.facts if other.name != fact.name]
        self.facts.append(fact)

    def warn(self, message: str) -> None:
        """Note something that the operator should know."""
        if message not in self.warnings:
            self.warnings.append(message)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's header entry. ``begin`` and ``end`` are absolute byte positions in ``file``."""

    dtype: str  # the safetensors spelling: F32, BF16, F16, ...
    shape: tuple[int, ...]
    file: str = ""  # relative to the checkpoint's directory
    begin: int = 0
    end: int = 0


class TensorTable(Mapping[str, TensorInfo]):
    """All tensors of a checkpoint by name."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that has to be there.

        Raises:
            MissingTensor: It isn't.
        """
        info = self._tensors.get(name)
        if info is None:
            raise MissingTensor(f"tensor {name} is missing from the checkpoint.", param=name)
        return info.shape


class CheckpointConfig:
    """Typed, bounded access to config.json (an empty one when the file is missing).

    Each reader takes several spellings of a key (the old hub naming and that of transformers 5); the first that
    is present and not null wins. Dotted keys look into nested objects (``rope_parameters.rope_theta``).
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, *keys: str, default: Any = None) -> Any:
        """First present, non-null value, infinities in transformers 5's spelling decoded; else ``default``."""
        for key in keys:
            value: Any = self.values
            for part in key.split("."):
                value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is not _MISSING and value is not None:
                return _plain(value)
        return default

    def integer(self, *keys: str, default: int | None = None, low: int = 1, high: int = MAX_SIZE) -> int:
        """A bounded integer.

        Raises:
            CorruptCheckpoint: Missing without a default, not an integer, or out of range.
        """
        value = self.get(*keys, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(keys, value, "an integer")
        if not low <= value <= high:
            raise self._bad(keys, value, f"from {low} to {high}")
        return value

    def optional_integer(self, *keys: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        return None if self.get(*keys) is None else self.integer(*keys, low=low, high=high)

    def number(self, *keys: str, default: float | None = None, low: float = -1e12, high: float = 1e12) -> float:
        """A finite number in a range (infinite only if the range allows it)."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(keys, value, "a number")
        if not low <= value <= high:  # also NaN, and integers too large for a float
            raise self._bad(keys, value, f"from {low:g} to {high:g}")
        return float(value)

    def boolean(self, *keys: str, default: bool | None = None) -> bool:
        value = self.get(*keys, default=default)
        if not isinstance(value, bool):
            raise self._bad(keys, value, "true or false")
        return value

    def string(self, *keys: str, default: str | None = None, choices: tuple[str, ...] | None = None) -> str:
        """A string, optionally one of ``choices``."""
        value = self.get(*keys, default=default)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self._bad(keys, value, "a string" if choices is None else "one of " + ", ".join(choices))
        return value

    def numbers(self, *keys: str) -> tuple[float, ...]:
        """A list of finite numbers; empty when no key is present."""
        value = self.get(*keys, default=())
        if not isinstance(value, list | tuple) or not all(
            isinstance(item, int | float) and not isinstance(item, bool) and abs(item) <= _MAX_NUMBER for item in value
        ):
            raise self._bad(keys, value, "a list of numbers")
        return tuple(float(item) for item in value)

    def strings(self, *keys: str) -> tuple[str, ...]:
        """A list of strings; empty when no key is present."""
        value = self.get(*keys, default=())
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._bad(keys, value, "a list of strings")
        return tuple(value)

    def integers(self, *keys: str) -> tuple[int, ...]:
        """A list of integers; empty when no key is present."""
        value = self.get(*keys, default=())
        if not isinstance(value, list | tuple) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise self._bad(keys, value, "a list of integers")
        return tuple(value)

    def _bad(self, keys: tuple[str, ...], value: Any, expected: str) -> CorruptCheckpoint:
        shown = "missing" if value is None else f"{str(value)[:60]!r}"
        return CorruptCheckpoint(f"config.json: {keys[0]} is {shown}; it must be {expected}.", param=keys[0])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"__float__"}:
        with contextlib.suppress(ValueError, TypeError, OverflowError):  # then it is an object like any other
            return float(value["__float__"])
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """Argument of a family's ``build_spec``.

    Attributes:
        is_part: The config is a text model's within that of a model that sees or hears too, whose tensors are beside.
    """

    config: CheckpointConfig
    tensors: TensorTable
    facts: Facts
    is_part: bool = False

    def changed(self, **values: Any) -> CheckpointView:
        """The same checkpoint with other values in config.json."""
        return self.with_config({**self.config.values, **values})

    def with_config(self, values: Mapping[str, Any]) -> CheckpointView:
        """The same checkpoint with these values alone in config.json."""
        return replace(self, config=CheckpointConfig(values))
