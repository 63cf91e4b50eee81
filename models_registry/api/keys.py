"""Let API keys with the scope ``admin`` upload checkpoints and register adapters, beside the sessions of accounts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from inference.errors import BlazrError, PermissionRefused
from inference.values.principal import Principal
from models_registry.models import Checkpoint

SCOPE = "admin"
PERMISSIONS = frozenset(
    f"models_registry.{name}" for name in ("view_checkpoint", "add_upload", "delete_checkpoint", "load_checkpoint")
)


@dataclass(frozen=True, slots=True)
class KeyUser:
    """The caller with a key, in the place of an account; it has no row of its own."""

    principal: Principal
    pk: None = None
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = True

    def has_perm(self, permission: str) -> bool:
        """Whether keys with the scope ``admin`` have a permission."""
        return permission in PERMISSIONS


def check_key_model(user: Any, name: str) -> None:
    """Refuse a caller with an API key that isn't for a model.

    Raises:
        PermissionRefused: Names the models that it is for.
    """
    if isinstance(user, KeyUser):
        user.principal.check_model(name)


def allowed_by_key(user: Any, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that a caller may know of: with a key that is for some models, those."""
    return [row for row in checkpoints if is_for_model(user, row.served_model_name)]


def is_for_model(user: Any, name: str) -> bool:
    """Whether a caller may know of a model; with an API key for some models, of those."""
    allowed = user.principal.models if isinstance(user, KeyUser) else None
    return allowed is None or name in allowed


class AdminKeyAuthentication(BaseAuthentication):
    """Authenticates a request with an API key; ``blazr_site.middleware`` has looked the key up."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        """Return the caller; None: the request has no key.

        Raises:
            NotAuthenticated: The key is wrong, expired or revoked.
            PermissionRefused: It hasn't the scope.
        """
        caller: Principal | BlazrError | None = getattr(request._request, "api_caller", None)
        if isinstance(caller, BlazrError):
            raise caller
        if caller is None or caller.kind != "key":
            return None
        if SCOPE not in caller.scopes:
            raise PermissionRefused(
                f"This API key may not change models: that needs the scope {SCOPE}. Make one with blazr key create "
                f"NAME --scope {SCOPE}."
            )
        return KeyUser(caller), None

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of a refusal."""
        return "Bearer"


class AdminKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes the key in the OpenAPI document."""

    target_class = "models_registry.api.keys.AdminKeyAuthentication"
    name = "AdminKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return OpenAPI's security scheme."""
        return {"type": "http", "scheme": "bearer", "description": "A key with the scope admin."}
