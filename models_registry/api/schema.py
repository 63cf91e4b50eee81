"""Add the common error responses of the registry's endpoints to the OpenAPI document."""

from __future__ import annotations

from typing import Any

PREFIX = "/registry"
_REFUSALS = {
    "401": "No session of a staff member, and no API key with the scope for it.",
    "4XX": "Refused; the message names the value and the remedy.",
    "503": "Not now.",
}


def schema_hook(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Add the error responses to every operation of the registry (drf-spectacular's hook)."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for path, methods in result["paths"].items():
        if path.startswith(PREFIX):
            for operation in methods.values():
                for status, description in _REFUSALS.items():
                    operation["responses"].setdefault(status, {"content": content, "description": description})
    return result
