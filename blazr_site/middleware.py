"""Middleware of the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

# Scripts only from our own files. Styles may be inline: widths of bars are data. The pages load nothing from elsewhere.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)

Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def content_security_policy(get_response: Handler) -> Handler:
    """Send the pages' content security policy with every response that doesn't bring its own."""
    from asgiref.sync import iscoroutinefunction

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
