"""Authenticate the sender of a request from its headers, session or WebSocket handshake."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import DisallowedHost
from rest_framework.authentication import CSRFCheck

from inference.access.accounts import principal_of_user
from inference.access.api_keys import principal_of_key
from inference.errors import InvalidRequest, NotAuthenticated, PermissionRefused
from inference.host.addresses import is_loopback
from inference.values.principal import KEY_MARK, LOCAL, UNAUTHENTICATED, Principal

if TYPE_CHECKING:
    from django.http import HttpRequest


_FORWARDED = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"}
)
"""Headers of proxies, besides ``X-Forwarded-*`` and ``X-Original-*``."""


RECHECK_S = 1.0
"""Seconds of a body after which its sender's key is checked again; a revoked key counts so long for new requests."""


def requires_key(headers: Iterable[str], peer: str | None) -> bool:
    """Whether a caller needs a key.

    A caller needs none on a connection from this machine that no proxy has forwarded, if the server is set up for this
    machine alone. ``BLAZR_NO_AUTH`` turns keys off.

    Args:
        headers: Names of the request's headers, in lower case.
        peer: Address of the other end of the connection; None: unknown.
    """
    if settings.BLAZR_NO_AUTH:
        return False
    return bool(settings.BLAZR_API_KEY_REQUIRED) or not _is_from_here(headers, peer)


def _is_from_here(headers: Iterable[str], peer: str | None) -> bool:
    if peer is None or not is_loopback(peer):
        return False
    return not any(name in _FORWARDED or name.startswith(("x-forwarded-", "x-original-")) for name in headers)


async def _principal(headers: Mapping[str, str], peer: str | None) -> Principal | None:
    """Return the caller that the headers name; None: they have no key, and one is required.

    Anthropic's clients send ``x-api-key`` in place of Authorization.

    Where no key is required, keys of other services are no error, because most clients always send one. A key of blazr
    is: it was meant for a server like this one, and is wrong, expired or revoked.

    Args:
        headers: The request's headers by their names in lower case.
        peer: See ``requires_key``.

    Raises:
        NotAuthenticated: The given key is wrong, expired or revoked; of a missing one the caller is None.
    """
    authorization = headers.get("authorization")
    if authorization is None and "x-api-key" in headers:
        authorization = f"Bearer {headers['x-api-key']}"
    principal = await principal_of_key(authorization) if authorization else None
    if principal is not None:
        return principal
    if not requires_key(headers, peer) and not _is_own_key(authorization):
        return LOCAL if _is_from_here(headers, peer) else UNAUTHENTICATED
    if not authorization:
        return None
    raise NotAuthenticated(
        "The API key is wrong, expired or revoked; make one on the admin pages or with blazr key create."
    )


def _is_own_key(authorization: str | None) -> bool:
    return authorization is not None and authorization.strip().rpartition(" ")[2].startswith(f"{KEY_MARK}_")


async def principal_of_connection(scope: Mapping[str, Any]) -> Principal | None:
    """Return the caller of an ASGI connection by its headers; None: a key is missing.

    Raises:
        NotAuthenticated: The key is wrong, expired or revoked.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope.get("headers", ()):
        name, value = raw_name.decode("latin1"), raw_value.decode("latin1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value  # as Django joins them
    client = scope.get("client")
    return await _principal(headers, client[0] if client else None)


async def principal_authenticate(request: HttpRequest, *, session_allowed: bool = False) -> Principal:
    """Return the caller of an HTTP request; by its ASGI scope, if the caller was found just before the body was read.

    Args:
        request: Django's request.
        session_allowed: Accept the session of a staff member too, for pages of this site. Unsafe methods then need
            the CSRF token.

    Raises:
        NotAuthenticated: The key is missing or not valid.
        PermissionRefused: A page of another site sent the request.
        InvalidRequest: The Host header is not one of this site's names.
    """
    scope = getattr(request, "scope", {})
    principal: Principal | None
    if "principal" in scope:
        principal = scope["principal"]
        if principal is not None and principal.kind == "key" and _is_old(scope):
            principal = await principal_of_connection(scope)
    else:
        headers = {name.lower(): value for name, value in request.headers.items()}
        principal = await _principal(headers, request.META.get("REMOTE_ADDR"))
    if principal is not None and principal.kind == "key":
        return principal
    if session_allowed:
        account = await _account(request)
        if account is not None:
            await _check_csrf(request)
            return account
    if principal is None:
        raise NotAuthenticated("An API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    _check_origin(request)
    return principal


def _is_old(scope: Mapping[str, Any]) -> bool:
    """Whether the body took so long that its sender's key may have been revoked since."""
    return time.monotonic() - float(scope.get("principal_at", 0.0)) > RECHECK_S


async def _account(request: HttpRequest) -> Principal | None:
    get_user = getattr(request, "auser", None)
    return None if get_user is None else await sync_to_async(principal_of_user)(await get_user())


async def _check_csrf(request: HttpRequest) -> None:
    def reason() -> Any:
        check = CSRFCheck(lambda _: None)  # type: ignore[arg-type]
        check.process_request(request)
        return check.process_view(request, lambda: None, (), {})  # type: ignore[arg-type,return-value]

    failed = await sync_to_async(reason)()
    if failed:
        raise PermissionRefused(f"The CSRF check failed: {failed}")


def _check_origin(request: HttpRequest) -> None:
    """Refuse requests from pages of other sites to a server that requires no key.

    Such a page can send a form to 127.0.0.1, or rebind its own name to it. Origin and Host reveal both.
    """
    try:
        host = request.get_host()
    except DisallowedHost as error:
        raise InvalidRequest("The Host header is not one of this server's names.", param="Host") from error
    origin = request.META.get("HTTP_ORIGIN")
    if origin is None or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if origin.partition("://")[2] != host:
        raise PermissionRefused("Requests from pages of another origin need an API key.")


async def principal_of_websocket(scope: Mapping[str, Any]) -> Principal | None:
    """Return the caller of a WebSocket, by a key in the headers or a staff member's session; None: refuse it."""
    headers = dict(scope.get("headers", []))
    try:
        principal = await principal_of_connection(scope)
    except NotAuthenticated:
        return None
    if principal is not None and principal.kind == "key":
        return principal
    user = scope.get("user")
    if user is not None:
        # Channels' lazy user reads the session's row on the first access.
        account = await sync_to_async(principal_of_user)(user)
        if account is not None:
            return account
    # A WebSocket has no preflight, so a page of another site could open one to a server that requires no key.
    origin, host = headers.get(b"origin"), headers.get(b"host")
    if origin is not None and origin.partition(b"://")[2] != host:
        return None
    return principal
