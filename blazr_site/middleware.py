"""Add the content security policy to the pages' responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

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
