"""Define the base of the API's async views: authentication, JSON bodies, errors in OpenAI's shape.

``ApiView`` subclasses DRF's view only for the OpenAPI schema. ``dispatch`` skips DRF's thread hops and content
negotiation: it checks method and caller, and calls the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.views import APIView

from inference.access.admission import admitted, headers_current, headers_reset
from inference.access.authentication import principal_authenticate
from inference.api.exception_handler import MethodNotAllowed, UnsupportedMediaType, error_response
from inference.api.idempotent import META_KEY, request_key, respond_once
from inference.errors import InvalidRequest, NotAuthenticated, RequestTooLarge
from inference.host.client_json import read_by_size, read_json
from inference.records.tracing import is_tracing, route_set
from inference.serving.full_queues import full_queues
from inference.values.principal import LOCAL, Principal, principal_set
from inference.values.request_key import RequestKey

T = TypeVar("T")


class ApiKeyAuthentication(BaseAuthentication):
    """Names the scheme in the OpenAPI schema; ``ApiView`` authenticates, without DRF's request."""

    def authenticate(self, request: Request) -> None:
        """Return nothing, so that a view outside of ``ApiView`` with this class authenticates nobody."""
        raise NotAuthenticated("This endpoint takes no API key.")


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes the authentication scheme in the OpenAPI schema."""

    target_class = "inference.api.base.ApiKeyAuthentication"
    name = "ApiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return OpenAPI's security scheme."""
        return {"type": "http", "scheme": "bearer", "description": "Not needed on a server bound to loopback."}


class ApiView(APIView):
    """Base of all views of the API.

    Attributes:
        public: Callable without a key.
        session_allowed: Callable with the session of a staff member too.
        admits_itself: The handler of POST counts against the caller's limits by itself (as ``generation_start`` does),
            or must not, because it ends work. Otherwise each POST counts as a request.
        rows_keep_key: The handler of POST keeps the idempotency key in the rows that it stores, and returns these to a
            request with the same key, so that no response has to be kept.
        principal: Who is calling.
        request_key: The request's idempotency key; a handler that stores rows keeps it in them.
    """

    authentication_classes = (ApiKeyAuthentication,)
    permission_classes = ()
    public: ClassVar[bool] = False
    session_allowed: ClassVar[bool] = False
    admits_itself: ClassVar[bool] = False
    rows_keep_key: ClassVar[bool] = False
    principal: Principal = LOCAL
    request_key: RequestKey | None = None

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Serve one request; every exception becomes an error response."""
        self.request = request  # type: ignore[assignment]
        self.args, self.kwargs = args, kwargs
        headers_reset()
        response: HttpResponseBase
        try:
            handler: Callable[..., Any] | None = None
            if request.method is not None and request.method.lower() in self.http_method_names:
                handler = getattr(self, request.method.lower(), None)
            if handler is None or request.method == "OPTIONS":
                allowed = ", ".join(self.methods)
                raise MethodNotAllowed(f"{request.method} is not for {request.path[:200]}; allowed: {allowed}.")
            if is_tracing() and request.resolver_match is not None:
                route_set(request.resolver_match.route)
            if not self.public:
                self.principal = await principal_authenticate(request, session_allowed=self.session_allowed)
                self.principal.check_scope(request.method or "", request.path)
                principal_set(self.principal)
            if request.method != "POST" or META_KEY not in request.META or self.public:
                response = await self._handle(handler, request)
            elif self.rows_keep_key:
                response = await self._handle(handler, request, await request_key(request))
            else:
                response = await respond_once(request, self.principal, partial(self._handle, handler, request))
        except Exception as error:
            response = self.error_response(error)
            if isinstance(error, MethodNotAllowed):
                response["Allow"] = ", ".join(self.methods)
        for name, value in headers_current().items():
            response[name] = value
        return response

    async def _handle(
        self, handler: Callable[..., Any], request: HttpRequest, request_key: RequestKey | None = None
    ) -> Any:
        self.request_key = request_key
        if request.method != "POST" or self.public or self.admits_itself:
            return await handler(request, *self.args, **self.kwargs)
        async with admitted(self.principal, tokens=0):
            return await handler(request, *self.args, **self.kwargs)

    def error_response(self, error: Exception) -> HttpResponse:
        """Return the response for an exception; views of other APIs override this with their shapes."""
        return error_response(error)

    @property
    def methods(self) -> list[str]:
        """Return the HTTP methods that have a handler."""
        return [name.upper() for name in self.http_method_names if name != "options" and hasattr(self, name)]


def json_response(payload: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    """Return a JSON response."""
    return HttpResponse(orjson.dumps(payload), status=status, content_type="application/json", headers=headers)


async def json_body(request: HttpRequest, read: Callable[[Any], T]) -> T:
    """Return what ``read`` makes of the JSON value of a request's body, parsed strictly.

    The body is released. A large one is parsed and read in a thread (``read_json``).

    Args:
        request: Django's request.
        read: Validates the value, in any thread; must not use the database or the event loop.

    Raises:
        UnsupportedMediaType: The type isn't JSON; web pages may send other types without a preflight.
        RequestTooLarge: The body exceeds ``BLAZR_MAX_BODY_BYTES``, or has too many values.
        InvalidRequest: The body isn't JSON, or ``read`` refuses it.
    """
    if request.content_type != "application/json":
        raise UnsupportedMediaType(
            f"The Content-Type is {(request.content_type or 'missing')[:80]!r}; send application/json."
        )
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity")
    if encoding != "identity":
        raise UnsupportedMediaType(f"The Content-Encoding is {encoding[:40]!r}; send the body uncompressed.")
    # Django keeps a large body on disk, so it is read in a thread.
    stream = request  # HttpRequest reads like a file
    limit = settings.BLAZR_MAX_BODY_BYTES
    body = await read_by_size(_declared_bytes(request), lambda: stream.read(limit + 1))
    request.close()
    if len(body) > limit:
        raise RequestTooLarge(f"The request body has more than {limit} bytes, the limit of this server.")
    return await read_json(body, read)


async def generation_body(request: HttpRequest, read: Callable[[Any], T], *, principal: Principal, endpoint: str) -> T:
    """Return ``json_body`` of a request for a model's queue; refuse it before ``read`` while the queue is full.

    Args:
        request: Django's request.
        read: As in ``json_body``.
        principal: The caller.
        endpoint: The API's name, for metrics.

    Raises:
        NoPlace: The queue was full a moment ago.
        InvalidRequest: As ``json_body`` raises.
    """

    def read_unless_full(value: Any) -> T:
        if isinstance(value, dict):
            full_queues().check(value.get("model"), principal, endpoint=endpoint)
        return read(value)

    return await json_body(request, read_unless_full)


async def read_further(request: HttpRequest, read: Callable[[], T]) -> T:
    """Run ``read``, which continues what ``json_body`` began, where ``json_body`` read a body of this size."""
    return await read_by_size(_declared_bytes(request), read)


def _declared_bytes(request: HttpRequest) -> int:
    return int(request.META.get("CONTENT_LENGTH") or 0)


def number_parameter(request: HttpRequest, name: str, default: int, low: int, high: int) -> int:
    """Return an integer of the query string.

    Raises:
        InvalidRequest: The value is no integer from ``low`` to ``high``.
    """
    text = request.GET.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not low <= int(text) <= high:
        raise InvalidRequest(f"{name} is {text[:40]!r}, it must be from {low} to {high}.", param=name)
    return int(text)
