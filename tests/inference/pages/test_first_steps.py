"""The steps of an empty server."""

from __future__ import annotations

import shlex

import pytest
from django.test import RequestFactory
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.models import UsageDay
from inference.pages.first_steps import curl_line, start_steps

pytestmark = pytest.mark.django_db
MODEL = {"served_model_name": "tiny", "state": "available"}


def request():
    return RequestFactory().get("/", headers={"host": "localhost"})


def test_steps_until_a_request_was_answered(settings) -> None:
    settings.BLAZR_API_KEY_REQUIRED = True
    steps = start_steps(request(), [])["steps"]
    assert (steps["model"], steps["has_key"], steps["needs_key"]) == ("", False, True)
    assert '"model": "MODEL"' in steps["curl"] and '"Authorization: Bearer $KEY"' in steps["curl"]
    api_key_create(name="x")
    steps = start_steps(request(), [MODEL])["steps"]
    assert (steps["model"], steps["has_key"]) == ("tiny", True) and '"model": "tiny"' in steps["curl"]
    UsageDay.objects.create(day=timezone.now().date(), tenant="local", model="tiny")
    assert start_steps(request(), [MODEL]) == {"steps": {}}


def test_the_line_is_one_of_a_shell() -> None:
    words = [word for word in shlex.split(curl_line(request(), "tiny", "blazr_key")) if word.strip()]
    assert words == [
        "curl", "http://localhost/v1/completions", "-H", "Authorization: Bearer blazr_key",
        "-H", "Content-Type: application/json", "-d", '{"model": "tiny", "prompt": "Hello"}',
    ]  # fmt: skip
    assert "Authorization" not in curl_line(request(), "tiny", "")
