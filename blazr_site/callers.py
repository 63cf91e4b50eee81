"""Authenticate the sender of a body from the headers of the request."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import aget_user
from django.http import HttpRequest, parse_cookie
from django.urls import ResolverMatch

from blazr_site.routes import DISK_ROUTES, api_view
from inference.access.accounts import principal_of_user
from inference.access.authentication import principal_of_connection
from inference.errors import NotAuthenticated
from inference.values.principal import Principal


async def body_caller(scope: MutableMapping[str, Any], route: ResolverMatch | None) -> str | None:
    """Return the caller, by a key or the session of an account; None: an unknown one, on a public route.

    What the caller may do is the view's decision, but for files, and so is whether another site's page sent the
    request. The view finds the caller of a key in ``scope["principal"]``, found at the monotonic time
    ``scope["principal_at"]``.

    Args:
        scope: ASGI's scope of the request.
        route: The request's route; None: there is none.

    Raises:
        NotAuthenticated: The route needs a key or a session, and there is none that is valid.
        PermissionRefused: The caller may not send the files of this route.
    """
    view = api_view(route)
    needs_caller = view is not None and not view.public and hasattr(view, scope["method"].lower())
    try:
        principal = scope["principal"] = await principal_of_connection(scope)
        scope["principal_at"] = time.monotonic()
    except NotAuthenticated:
        if needs_caller:
            raise
        principal = None
    if principal is None and (view is None or view.session_allowed):
        principal = await _account(scope)
    if principal is not None:
        if route is not None and route.view_name in DISK_ROUTES:
            principal.check_scope(scope["method"], scope["path"])  # before gigabytes are read
        return principal.tenant
    if needs_caller:
        raise NotAuthenticated("An API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    return None


async def _account(scope: Mapping[str, Any]) -> Principal | None:
    cookies = parse_cookie(dict(scope["headers"]).get(b"cookie", b"").decode("latin1"))
    session_key = cookies.get(settings.SESSION_COOKIE_NAME)
    if not session_key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return await sync_to_async(principal_of_user)(await aget_user(request))
