"""Translate every exception into OpenAI's error object and its HTTP status.

The shape is ``{"error": {message, type, param, code}}``. A ``BlazrError`` is shown as it is, DRF's and Django's
exceptions are translated. Any other exception is logged with its traceback, and the client sees "Internal error".
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import Any

import orjson
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.template import loader
from django.views import defaults
from rest_framework import exceptions

from inference.dialects.strict_serializer import first_error
from inference.errors import (
    BlazrError,
    EngineError,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    PermissionRefused,
    RequestTooLarge,
    Unavailable,
)

logger = logging.getLogger(__name__)

_API_PATHS = frozenset({"/v1", "/api", "/tokenize", "/detokenize", "/tokenizer_info", "/apply-template", "/infill"})
OUTAGE_LOG_S = 10.0
"""Seconds between log lines about a database that can't be reached."""
RETRY_AFTER_S = 5
"""Seconds in Retry-After of retryable errors that have no value of their own."""


_outage_logged_at = -OUTAGE_LOG_S


class MethodNotAllowed(InvalidRequest):
    """The path doesn't support this method."""

    code = "method_not_allowed"
    http_status = 405


class UnsupportedMediaType(InvalidRequest):
    """The Content-Type isn't supported."""

    code = "unsupported_media_type"
    http_status = 415


class RequestTimeout(InvalidRequest):
    """The request arrived too slowly."""

    code = "request_timeout"
    http_status = 408


def as_blazr_error(error: BaseException) -> BlazrError:
    """Return the error to show to a client; an unknown exception is logged here."""
    if isinstance(error, BlazrError):
        return error
    if isinstance(error, exceptions.MethodNotAllowed):
        return MethodNotAllowed(str(error.detail))
    if isinstance(error, exceptions.UnsupportedMediaType):
        return UnsupportedMediaType(str(error.detail))
    if isinstance(error, exceptions.ParseError):
        return InvalidRequest(f"The request body isn't valid JSON: {error.detail}")
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return NotAuthenticated(str(error.detail))
    if isinstance(error, exceptions.PermissionDenied | PermissionDenied):
        return PermissionRefused(str(getattr(error, "detail", error)) or "This isn't allowed.")
    if isinstance(error, exceptions.ValidationError):
        return first_error(error.detail)
    if isinstance(error, Http404 | exceptions.NotFound):
        return NotFound("There is nothing here.")
    if isinstance(error, exceptions.Throttled):
        return Unavailable(str(error.detail), retry_after_s=int(getattr(error, "wait", None) or RETRY_AFTER_S))
    if isinstance(error, RequestDataTooBig):
        return RequestTooLarge("The request body is larger than this server takes.")
    if isinstance(error, DisallowedHost):
        return InvalidRequest("The Host header is not one of this server's names.", param="Host")
    if isinstance(error, exceptions.APIException | SuspiciousOperation):
        return InvalidRequest(str(getattr(error, "detail", "The request was refused.")))
    if _is_database_outage(error):
        _log_outage(error)
        return Unavailable("The database can't be reached; try again.", retry_after_s=RETRY_AFTER_S)
    logger.error("unexpected error", exc_info=error)
    return EngineError("Internal error; the server's log has the details.")


def _log_outage(error: BaseException) -> None:
    """Log that the database can't be reached, once in a while, because each request finds it out."""
    global _outage_logged_at
    now = time.monotonic()
    if now - _outage_logged_at >= OUTAGE_LOG_S:
        _outage_logged_at = now
        logger.error("requests get 503: the database can't be reached: %s", str(error).strip().partition("\n")[0])


def _is_database_outage(error: BaseException) -> bool:
    return isinstance(error, OperationalError | InterfaceError)


def error_response(error: BaseException) -> HttpResponse:
    """Return the HTTP response for an exception."""
    known = as_blazr_error(error)
    response = HttpResponse(orjson.dumps(known.to_openai()), status=known.http_status, content_type="application/json")
    waiting_helps = known.http_status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    if waiting_helps or known.retry_after_s is not None:
        response["Retry-After"] = str(known.retry_after_s or RETRY_AFTER_S)
        # OpenAI's clients read this header before they decide by the status.
        response["x-should-retry"] = "true" if known.retryable else "false"
    if known.http_status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    return response


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """DRF's hook (setting EXCEPTION_HANDLER)."""
    return error_response(error)


def _is_api_path(path: str) -> bool:
    return path.startswith(("/v1/", "/api/", "/registry/")) or path in _API_PATHS


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400."""
    if _is_api_path(request.path):
        return error_response(exception)
    return defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler403."""
    if _is_api_path(request.path):
        return error_response(exception)
    return defaults.permission_denied(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404: OpenAI's error object for paths of the API, a page for the others."""
    if _is_api_path(request.path):
        return error_response(NotFound(f"There is no endpoint {request.method} {request.path[:200]}."))
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500; Django has logged the traceback."""
    if _is_api_path(request.path):
        return error_response(EngineError("Internal error; the server's log has the details."))
    try:
        page = loader.render_to_string("500.html", request=request)
    except Exception:  # the session's account may be what can't be read
        return defaults.server_error(request)
    return HttpResponse(page, status=HTTPStatus.INTERNAL_SERVER_ERROR)
