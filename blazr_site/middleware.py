"""Add the content security policy to the pages' responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

# Scripts come only from this site. Styles may be inline, because widths of bars are data.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)

Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def content_security_policy(get_response: Handler) -> Handler:
    """Send the pages' content security policy with each response that has none of its own."""
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
