"""API keys on the command line and on the admin pages."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from inference.access.api_keys import key_prefix
from inference.models import ApiKey, GenerationJob


def test_the_command_creates_lists_and_revokes(db, capsys):
    call_command("api_key", "create", "ci", "--days", "30")
    key = capsys.readouterr().out.strip()
    prefix = key_prefix(key)
    call_command("api_key", "list")
    assert re.match(rf"{prefix}  \d{{4}}-\d\d-\d\d  until ", capsys.readouterr().out)
    call_command("api_key", "revoke", prefix)
    assert ApiKey.objects.get(prefix=prefix).revoked_at is not None
    for wrong in (("revoke", "nobody"), ("create", ""), ("create", "x", "--days", "0")):
        with pytest.raises(CommandError):
            call_command("api_key", *wrong)


def test_the_admin_shows_a_new_key_once(admin_client):
    response = admin_client.post(
        reverse("admin:inference_apikey_add"), {"name": "ci", "scopes": ["generate"]}, follow=True
    )
    (key,) = set(re.findall(r"blazr_[0-9A-Za-z]+_[0-9A-Za-z]+", response.content.decode()))
    row = ApiKey.objects.get()
    assert key_prefix(key) == row.prefix
    page = admin_client.get(reverse("admin:inference_apikey_change", args=[row.pk])).content.decode()
    assert key not in page
    assert row.digest not in page
    admin_client.post(
        reverse("admin:inference_apikey_changelist"), {"action": "revoke", "_selected_action": [row.pk]}, follow=True
    )
    row.refresh_from_db()
    assert row.revoked_at is not None


def test_the_admin_refuses_a_bad_key(admin_client):
    values = {"name": "ci", "scopes": ["generate"], "expires_at_0": "2001-01-01", "expires_at_1": "00:00:00"}
    response = admin_client.post(reverse("admin:inference_apikey_add"), values, follow=True)
    assert "has passed" in response.content.decode()
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("name", ["usagerecord", "generationjob"])
def test_rows_of_the_services_are_read_only(admin_client, name):
    assert admin_client.get(reverse(f"admin:inference_{name}_changelist")).status_code == 200
    assert admin_client.get(reverse(f"admin:inference_{name}_add")).status_code == 403
    assert not GenerationJob.objects.exists()
