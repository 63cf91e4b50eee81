"""Errors of every kind in OpenAI's shape: known ones, REST framework's, Django's, and those that nobody expected."""

from __future__ import annotations

import logging

import orjson
import pytest
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404
from django.test import RequestFactory
from rest_framework import exceptions

from inference.api.exception_handler import as_blazr_error, error_response, page_not_found, server_error
from inference.errors import QueueFull, UnknownModel


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownModel("x"), 404, "model_not_found"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (exceptions.ParseError("x"), 400, "invalid_request"),
        (exceptions.NotAuthenticated(), 401, "invalid_api_key"),
        (exceptions.PermissionDenied(), 403, "permission_denied"),
        (PermissionDenied("no"), 403, "permission_denied"),
        (exceptions.ValidationError({"a": ["wrong."]}), 400, "invalid_value"),
        (Http404(), 404, "not_found"),
        (exceptions.Throttled(wait=7), 503, "unavailable"),
        (RequestDataTooBig(), 413, "request_too_large"),
        (DisallowedHost("x"), 400, "invalid_request"),
        (OperationalError("gone"), 503, "unavailable"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_every_error_has_its_status_and_code(error, status, code, caplog):
    with caplog.at_level(logging.CRITICAL):
        response = error_response(error)
    body = orjson.loads(response.content)["error"]
    assert (response.status_code, body["code"]) == (status, code)
    assert set(body) == {"message", "type", "param", "code"}
    assert "secret" not in body["message"]


def test_errors_that_pass_say_when_to_come_back():
    response = error_response(QueueFull("full", retry_after_s=3))
    assert (response["Retry-After"], response["x-should-retry"]) == ("3", "true")
    assert error_response(exceptions.NotAuthenticated())["WWW-Authenticate"] == "Bearer"
    assert "Retry-After" not in error_response(UnknownModel("x"))


def test_nobody_sees_what_was_not_expected(caplog):
    assert as_blazr_error(ValueError("password is 123")).message.startswith("Internal error")
    assert "password is 123" in caplog.text


@pytest.mark.parametrize(("path", "is_api"), [("/v1/nothing", True), ("/api/nothing", True), ("/pages/x", False)])
def test_paths_of_the_api_have_its_errors_and_pages_have_theirs(path, is_api, db):
    request = RequestFactory().get(path)
    for response, status in ((page_not_found(request, Http404()), 404), (server_error(request), 500)):
        assert response.status_code == status
        assert (response["Content-Type"] == "application/json") is is_api
