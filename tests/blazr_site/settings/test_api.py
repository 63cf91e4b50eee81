"""Addresses, keys and the names that the site answers to."""

from __future__ import annotations

import json

import pytest

from tests.blazr_site.settings.harness import run_python

LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


@pytest.mark.parametrize(
    ("variables", "hosts", "origins", "needs_key"),
    [
        ({}, LOOPBACK, [], False),
        ({"BLAZR_HOST": "0.0.0.0"}, ["*"], [], True),
        ({"BLAZR_HOST": "0.0.0.0", "BLAZR_NO_AUTH": "1", "BLAZR_ALLOWED_HOSTS": "box"}, ["box"], [], False),
        ({"BLAZR_ALLOWED_HOSTS": "localhost,127.0.0.2"}, ["localhost", "127.0.0.2"], [], False),
        ({"BLAZR_ALLOWED_HOSTS": "localhost,llm.example"}, ["localhost", "llm.example"], [], True),
        ({"BLAZR_HTTPS": "1"}, LOOPBACK, [f"https://{name}" for name in LOOPBACK], True),
        ({"BLAZR_HOST": "0.0.0.0", "BLAZR_HTTPS": "1"}, ["*"], [], True),
        (
            {"BLAZR_HTTPS": "1", "BLAZR_ALLOWED_HOSTS": "a.example,.b.example"},
            ["a.example", ".b.example"],
            ["https://a.example", "https://*.b.example"],
            True,
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


@pytest.mark.parametrize(
    "variables",
    [
        {"BLAZR_HOST": "0.0.0.0", "BLAZR_NO_AUTH": "1"},
        {"BLAZR_NO_AUTH": "1", "BLAZR_ALLOWED_HOSTS": "*"},
        {"BLAZR_HOST": "0.0.0.0", "BLAZR_NO_AUTH": "1", "BLAZR_ALLOWED_HOSTS": "box,*"},
    ],
)
def test_no_server_without_keys_answers_to_every_name(tmp_path, variables):
    """A web page whose name was rebound to the server could use it otherwise."""
    done = run_python("import blazr_site.settings", BLAZR_DATA_DIR=str(tmp_path), **variables)
    assert done.returncode != 0
    assert "--no-auth" in done.stderr and "Set BLAZR_ALLOWED_HOSTS=" in done.stderr


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"_BLAZR_FAULTS": "hint:sleep:1"}, ""),
        ({"_BLAZR_FAULTS": "hint:sleep:1", "BLAZR_HTTPS": "1"}, "is refused on a server that others reach"),
        ({"_BLAZR_FAULTS": "hint:sleep:1", "BLAZR_HOST": "0.0.0.0"}, "is refused on a server that others reach"),
        ({"_BLAZR_FAULTS": "nowhere:sleep:1"}, "'nowhere' is no fault point"),
    ],
)
def test_fault_points_are_for_servers_of_this_machine(tmp_path, variables, says):
    variables = {**variables, "BLAZR_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "blazr_site.settings"}
    done = run_python("import django; django.setup()", **variables)
    assert (done.returncode == 0) is (not says), done.stderr
    assert says in done.stderr
