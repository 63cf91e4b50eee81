"""Addresses, keys and the names that the site answers to."""

from __future__ import annotations

import json

import pytest

from blazr_site.settings.api import is_loopback
from tests.blazr_site.settings.harness import run_python


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.8.8", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host, wanted):
    assert is_loopback(host) is wanted


@pytest.mark.parametrize(
    ("variables", "hosts", "origins", "needs_key"),
    [
        ({}, ["localhost", "127.0.0.1", "[::1]"], [], False),
        ({"BLAZR_HOST": "0.0.0.0"}, ["*"], [], True),
        ({"BLAZR_HOST": "0.0.0.0", "BLAZR_NO_AUTH": "1"}, ["*"], [], False),
        ({"BLAZR_HOST": "0.0.0.0", "BLAZR_HTTPS": "1"}, ["*"], [], True),
        (
            {"BLAZR_HTTPS": "1", "BLAZR_ALLOWED_HOSTS": "a.example,.b.example"},
            ["a.example", ".b.example"],
            ["https://a.example", "https://*.b.example"],
            False,
        ),
    ],
)
def test_origins_follow_from_names_and_https(tmp_path, variables, hosts, origins, needs_key):
    code = (
        "import json; from blazr_site import settings as s; "
        "print(json.dumps([s.ALLOWED_HOSTS, s.CSRF_TRUSTED_ORIGINS, s.BLAZR_API_KEY_REQUIRED]))"
    )
    done = run_python(code, BLAZR_DATA_DIR=str(tmp_path), **variables)
    assert json.loads(done.stdout) == [hosts, origins, needs_key], done.stderr
