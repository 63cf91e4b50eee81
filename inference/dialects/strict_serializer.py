"""What all request bodies share: unknown members are refused, and one error is reported, by the field's name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from rest_framework import serializers
from rest_framework.fields import empty

from inference.dialects.refusals import Refused, fields_without_refused
from inference.errors import InvalidRequest, InvalidSamplingParams, UnsupportedFeature


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown members and reports one error, by the field's name.

    It holds no state while it validates, so one instance of each serves every request: building one costs more than
    using it.
    """

    refused: ClassVar[Mapping[str, Refused]] = {}
    takes_hints: ClassVar[bool] = False

    @classmethod
    def shared(cls) -> Self:
        """The one instance that requests use."""
        found = cls.__dict__.get("_shared")
        if found is None:
            found = cls()
            cls._shared = found
        return found

    _shared: ClassVar[Any] = None
    _looked_at: list[serializers.Field[Any, Any, Any, Any]] | None = None

    @property
    def _writable_fields(self) -> list[serializers.Field[Any, Any, Any, Any]]:
        return self._all_writable if self._looked_at is None else self._looked_at

    @functools.cached_property
    def _all_writable(self) -> list[serializers.Field[Any, Any, Any, Any]]:
        return list(super()._writable_fields)

    def _read_only_defaults(self) -> dict[str, Any]:
        return {}  # a request's body has no fields that are only read

    def to_internal_value(self, data: Any) -> Any:
        """As REST framework's, without a look at fields that may be left out and are: most of some forty."""
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)
        one_use = object.__new__(type(self))  # a copy, without REST framework's record of how it was made
        one_use.__dict__.update(self.__dict__)
        one_use._looked_at = [
            field
            for field in self._all_writable
            if field.field_name in data or field.required or field.default is not empty
        ]
        return serializers.Serializer.to_internal_value(one_use, data)

    def parse(self, body: object) -> dict[str, Any]:
        """The validated members of ``body``; null counts as absent.

        Raises:
            InvalidRequest: The first thing that is wrong.
        """
        if not isinstance(body, dict):
            raise InvalidRequest("the request body must be a JSON object.")
        known = frozenset(self.fields)
        if self.takes_hints:
            kept = fields_without_refused(body, known=known, refused=self.refused)
        else:
            for name in body:
                if name not in known:
                    raise UnsupportedFeature(
                        f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80]
                    )
            kept = {name: value for name, value in body.items() if value is not None}
        try:
            values: dict[str, Any] = self.run_validation(kept)
        except serializers.ValidationError as error:
            raise first_error(error.detail) from None
        return values


def first_error(detail: Any) -> InvalidRequest:
    """DRF's tree of errors as one sentence about one field."""
    path: list[str] = []
    while isinstance(detail, dict | list):
        if isinstance(detail, dict):
            key = next(iter(detail))
            if key != "non_field_errors":
                path.append(str(key))
            detail = detail[key]
        else:
            detail = next((item for item in detail if item), "is not valid.")
    param = ".".join(path) or None
    code = getattr(detail, "code", "invalid")
    text = str(detail)
    if code == "required":
        return InvalidRequest(f"{param} is required.", param=param)
    message = (
        f"{param} {text[:1].lower()}{text[1:]}" if text.startswith(("must", "has", "message ")) else f"{param}: {text}"
    )
    return InvalidSamplingParams(message, param=param)
