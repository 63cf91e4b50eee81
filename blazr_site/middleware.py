"""Middleware of the pages and the registry: the content security policy, and API keys of uploads and adapters."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from inference.access.authentication import principal_authenticate
from inference.errors import BlazrError
from inference.values.principal import Principal

KEY_PATHS = re.compile(r"/registry/(uploads|pulls|checkpoints\Z|checkpoints/[^/]+/adapters(/|\Z))")
"""Paths of the registry that take keys: uploads, pulls, the list of checkpoints, and adapters."""

# Everything comes from this site's files: no inline scripts, and no inline styles. Widths of bars are data: scripts set
# them through the style object of an element, which the policy allows.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)

Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def content_security_policy(get_response: Handler) -> Handler:
    """Send the pages' content security policy with each response that has none of its own."""
    if iscoroutinefunction(get_response):

        async def async_middleware(request: HttpRequest) -> HttpResponseBase:
            response = cast("HttpResponseBase", await cast("Any", get_response(request)))
            response.headers.setdefault("Content-Security-Policy", POLICY)
            return response

        return async_middleware

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = cast("HttpResponseBase", get_response(request))
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return middleware


@sync_and_async_middleware
def admin_keys(get_response: Handler) -> Handler:
    """Find the caller of one of ``KEY_PATHS`` by its API key, for ``models_registry.api.keys``, which has no keys.

    ``request.api_caller`` is the caller, or the error of a wrong key. Other requests have no such attribute.
    """
    if iscoroutinefunction(get_response):

        async def async_middleware(request: HttpRequest) -> HttpResponseBase:
            if _has_key(request):
                cast("Any", request).api_caller = await _api_caller(request)
            return cast("HttpResponseBase", await cast("Any", get_response(request)))

        return async_middleware

    def middleware(request: HttpRequest) -> HttpResponseBase:
        if _has_key(request):
            cast("Any", request).api_caller = async_to_sync(_api_caller)(request)
        return cast("HttpResponseBase", get_response(request))

    return middleware


def _has_key(request: HttpRequest) -> bool:
    if KEY_PATHS.match(request.path) is None:
        return False
    # Other schemes are those of a proxy, before which somebody is signed in.
    scheme = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")[0]
    return "HTTP_X_API_KEY" in request.META or scheme.lower() == "bearer"


async def _api_caller(request: HttpRequest) -> Principal | BlazrError:
    try:
        return await principal_authenticate(request)
    except BlazrError as error:
        return error
