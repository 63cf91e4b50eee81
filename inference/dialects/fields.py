"""Define serializer fields that accept JSON's types without conversion.

DRF's own fields convert ("7" becomes 7, 1 becomes True), which would hide mistakes of the client.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.errors import shown
from inference.values import sampling_params as limits

MAX_PROMPTS = 1024
MAX_INPUTS = 2048
MAX_TOKEN_ID = 1 << 31
MAX_KEEP_ALIVE_S = 31_536_000
MAX_DURATION_CHARS = 64
_FIRST_FLOAT = 1 << 63
"""orjson reads larger integers as floats, which are out of range rather than of the wrong type."""
_IDS_PER_STEP = 1 << 14

_DURATION = re.compile(r"([+-]?)((\d{1,9}(?:\.\d{1,9})?)|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))+)")
_PART = re.compile(r"([\d.]+)(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def check_range(field: serializers.IntegerField | serializers.FloatField, value: float) -> None:
    """Check a number against the limits of its field; the error names the value and the limits.

    Raises:
        ValidationError: ``value`` is outside the field's limits.
    """
    low, high = field.min_value, field.max_value
    if (low is None or value >= low) and (high is None or value <= high):
        return
    if low is not None and high is not None:
        expected = f"from {low} to {high}"
    else:
        expected = f"{low} or more" if high is None else f"{high} or less"
    raise serializers.ValidationError(f"is {shown(value)}, it must be {expected}.")


class RequestField(serializers.Field[Any, Any, Any, Any]):
    """A field of request bodies only, so that its representation is its value."""

    def to_representation(self, value: Any) -> Any:
        return value


class _CheckedRange:
    """Mixin of fields that check the range in ``to_internal_value``, so that DRF's validators needn't run."""

    def run_validators(self, value: Any) -> None:
        """Check nothing: the range was checked. The validators remain because the OpenAPI schema reads them."""


class StrictIntegerField(_CheckedRange, serializers.IntegerField):
    """A JSON integer; 7.0 and "7" are refused."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is float and data.is_integer() and abs(data) >= _FIRST_FLOAT:
            check_range(self, data)
        if type(data) is not int:
            raise serializers.ValidationError(f"must be an integer, got {shown(data)}.")
        check_range(self, data)
        return data


class StrictNumberField(_CheckedRange, serializers.FloatField):
    """A finite JSON number."""

    def to_internal_value(self, data: Any) -> float:
        if type(data) not in (int, float):
            raise serializers.ValidationError(f"must be a number, got {shown(data)}.")
        try:
            number = float(data)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise serializers.ValidationError("must be a finite number.")
        check_range(self, number)
        return number


class StrictBooleanField(serializers.BooleanField):
    """true or false."""

    def to_internal_value(self, data: Any) -> bool:
        if type(data) is not bool:
            raise serializers.ValidationError(f"must be true or false, got {shown(data)}.")
        return data


class StrictCharField(serializers.CharField):
    """A JSON string, not trimmed."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)
        # A tokenizer accepts NUL. Code that can't (the database) refuses NUL itself.
        self.validators = [item for item in self.validators if "Prohibit" not in type(item).__name__]

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if data is not serializers.empty and data is not None and not isinstance(data, str):
            raise serializers.ValidationError(f"must be a string, got {shown(data)}.")
        return super().run_validation(data)


class StrictListField(serializers.ListField):
    """A JSON list; its length is checked before its items, as DRF keeps an error for every wrong one."""

    def __init__(self, *, max_length: int, **kwargs: Any) -> None:
        super().__init__(max_length=max_length, **kwargs)

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise serializers.ValidationError(f"must be a list, got {shown(data)}.")
        if self.max_length is not None and len(data) > self.max_length:
            raise serializers.ValidationError(f"has {len(data)} items, at most {self.max_length} are allowed.")
        items: list[Any] = super().to_internal_value(data)
        return items


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "maxItems": limits.MAX_STOP_STRINGS},
        ]
    }
)
class StopField(RequestField):
    """A string or a list of strings; SamplingParams checks their number and lengths."""

    def to_internal_value(self, data: Any) -> list[str]:
        strings = [data] if isinstance(data, str) else data
        if not isinstance(strings, list):
            raise serializers.ValidationError(f"must be a string or a list of strings, got {shown(data)}.")
        if len(strings) > limits.MAX_STOP_STRINGS:
            raise serializers.ValidationError(
                f"has {len(strings)} strings, at most {limits.MAX_STOP_STRINGS} are allowed."
            )
        if not all(isinstance(item, str) for item in strings):
            raise serializers.ValidationError("must be a string or a list of strings.")
        return strings


def checked_token_ids(data: list[Any]) -> list[int]:
    """Return ``data`` if it is a list of possible token ids; the model's vocabulary is checked later.

    Lists can be long, so passes run at C speed instead of a field call per id, in steps between which other threads
    continue.
    """
    for start in range(0, len(data), _IDS_PER_STEP):
        ids = data[start : start + _IDS_PER_STEP]
        if set(map(type, ids)) != {int}:
            raise serializers.ValidationError("must hold integers only: a list of token ids.")
        if min(ids) < 0 or max(ids) >= MAX_TOKEN_ID:
            wrong = next(item for item in ids if not 0 <= item < MAX_TOKEN_ID)
            raise serializers.ValidationError(f"has the token id {shown(wrong)}, which no vocabulary has.")
    return data


@extend_schema_field({"type": "array", "items": {"type": "integer", "minimum": 0}})
class TokenIdsField(RequestField):
    """A list of token ids."""

    def __init__(self, *, max_length: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_length = max_length

    def to_internal_value(self, data: Any) -> list[int]:
        if not isinstance(data, list):
            raise serializers.ValidationError(f"must be a list of token ids, got {shown(data)}.")
        if self.max_length is not None and len(data) > self.max_length:
            raise serializers.ValidationError(f"has {len(data)} ids, at most {self.max_length} are allowed.")
        return checked_token_ids(data)


@extend_schema_field({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})
class LogitBiasField(RequestField):
    """An object that maps token ids (as strings) to numbers; SamplingParams checks both."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"must map token ids to numbers, got {shown(data)}.")
        return data


def _prompts_schema(most: int) -> dict[str, Any]:
    return {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": most},
            {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            {
                "type": "array",
                "minItems": 1,
                "maxItems": most,
                "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            },
        ]
    }


@extend_schema_field(_prompts_schema(MAX_PROMPTS))
class PromptField(RequestField):
    """One prompt or several, each as text or token ids; the value is a list of str or list[int]."""

    most, noun = MAX_PROMPTS, "prompts"

    def to_internal_value(self, data: Any) -> list[str] | list[list[int]]:
        if isinstance(data, str):
            return [data]
        if not isinstance(data, list):
            raise serializers.ValidationError(
                f"must be a string, a list of strings, a list of token ids or a list of those, got {shown(data)}."
            )
        if not data:
            raise serializers.ValidationError("must not be an empty list.")
        first = data[0]
        if isinstance(first, int):
            return [checked_token_ids(data)]
        if len(data) > self.most:
            raise serializers.ValidationError(f"has {len(data)} {self.noun}, at most {self.most} go into one request.")
        if isinstance(first, str):
            if not all(isinstance(item, str) for item in data):
                raise serializers.ValidationError("mixes strings with other values.")
            return data
        if not all(isinstance(item, list) for item in data):
            raise serializers.ValidationError("must be a list of strings or a list of lists of token ids.")
        if not all(data):
            raise serializers.ValidationError("has an empty list of token ids.")
        return [checked_token_ids(item) for item in data]


@extend_schema_field(_prompts_schema(MAX_INPUTS))
class InputField(PromptField):
    """One or several inputs of an embedding request, up to OpenAI's limit."""

    most, noun = MAX_INPUTS, "inputs"


@extend_schema_field({"oneOf": [{"type": "number", "minimum": -1}, {"type": "string"}]})
class KeepAliveField(RequestField):
    """How long a model stays loaded: seconds, or a Go duration; below 0 for ever. The value is in seconds."""

    def __init__(self) -> None:
        help_text = 'Keep the model so long after this request: seconds, "10m"; -1: for ever.'
        super().__init__(required=False, allow_null=True, help_text=help_text)

    def to_internal_value(self, data: Any) -> float:
        seconds: float | None = None
        if type(data) in (int, float) and math.isfinite(data):
            seconds = float(data)
        elif isinstance(data, str):
            seconds = _duration_s(data)
        if seconds is None or seconds > MAX_KEEP_ALIVE_S:
            raise serializers.ValidationError(
                f'must be seconds up to {MAX_KEEP_ALIVE_S:,}, a duration such as "10m" or "1h30m", or -1, '
                f"got {shown(data)}."
            )
        return seconds if seconds >= 0 else -1.0


def _duration_s(text: str) -> float | None:
    """Return the seconds of a Go duration (``1h30m``, ``-1m``, ``300ms``) or of a bare number of seconds."""
    found = None if len(text) > MAX_DURATION_CHARS else _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    body = found[2]
    if found[3] is not None:
        seconds = float(body)
    else:
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(body))
    return -seconds if found[1] == "-" and seconds else seconds


@extend_schema_field({"type": "object", "additionalProperties": {}})
class JSONObjectField(RequestField):
    """Any JSON object."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"must be an object, got {shown(data)}.")
        return data


FieldT = TypeVar("FieldT", bound=serializers.Field[Any, Any, Any, Any])


def optional(kind: type[FieldT], help_text: str | None = None, **options: Any) -> FieldT:
    """Return a field that may be absent or null."""
    return kind(required=False, allow_null=True, help_text=help_text, **options)


def optional_number(low: float, high: float, help_text: str) -> StrictNumberField:
    """Return the field of a number from ``low`` to ``high`` that may be absent or null."""
    return optional(StrictNumberField, help_text, min_value=low, max_value=high)


def optional_integer(low: int, high: int, help_text: str) -> StrictIntegerField:
    """Return the field of an integer from ``low`` to ``high`` that may be absent or null."""
    return optional(StrictIntegerField, help_text, min_value=low, max_value=high)


def optional_state() -> StrictCharField:
    """Return the field of a saved state's name that may be absent or null."""
    return optional(StrictCharField, "Name of a saved state (POST /v1/states); the prompt follows it.", max_length=64)


def optional_boolean(help_text: str) -> StrictBooleanField:
    """Return the field of true or false that may be absent or null."""
    return optional(StrictBooleanField, help_text)
