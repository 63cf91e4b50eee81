"""Define the base serializer of request bodies: it refuses unknown members and reports one error."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from rest_framework import serializers
from rest_framework.fields import empty

from inference.dialects.refusals import Refused, fields_without_refused
from inference.errors import InvalidRequest, InvalidSamplingParams, UnsupportedFeature


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown members and reports one error that names the field.

    Validation keeps no state in the serializer, so one instance per class serves all requests: to build an instance
    costs more than to use one.
    """

    refused: ClassVar[Mapping[str, Refused]] = {}
    takes_hints: ClassVar[bool] = False

    @classmethod
    def shared(cls) -> Self:
        """Return the instance that all requests share."""
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
        return {}  # request bodies have no read-only fields

    def to_internal_value(self, data: Any) -> Any:
        """Validate as DRF does, but skip absent optional fields: most of the forty or so fields."""
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)
        one_use = object.__new__(type(self))  # a copy without the constructor arguments that DRF records
        one_use.__dict__.update(self.__dict__)
        one_use._looked_at = [
            field
            for field in self._all_writable
            if field.field_name in data or field.required or field.default is not empty
        ]
        return serializers.Serializer.to_internal_value(one_use, data)

    def parse(self, body: object) -> dict[str, Any]:
        """Validate ``body`` and return its members; null counts as absent.

        Raises:
            InvalidRequest: The first error that was found.
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
    """Return the first error of DRF's error tree, as one sentence about one field."""
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
    if param is None:
        return InvalidSamplingParams(text)
    if text.startswith(("must", "has", "is ", "message ")):
        message = f"{param} {text[:1].lower()}{text[1:]}"
    else:
        message = f"{param}: {text}"
    return InvalidSamplingParams(message, param=param)
