"""Batches for people: the session's way to them, and the admin."""

from __future__ import annotations

import pytest
from django.urls import reverse

from inference.jobs import hints
from inference.models import Schedule
from tests.inference.batches.fakes import EchoManager, line, make_batch, make_runner, work
from tests.inference.rows import make_checkpoint
from tests.inference.schedules.fakes import make_schedule


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    settings.BLAZR_WEBHOOKS = "public"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def batch(transactional_db):
    model = make_checkpoint()
    made = make_batch([line("a")], webhook={"url": "https://example.com/", "secret": "whsec_" + "A" * 40})
    return work(made, make_runner(EchoManager(str(model.pk))))


def test_a_staff_session_sees_cancels_and_downloads(batch, settings, async_client, admin_user):
    settings.BLAZR_API_KEY_REQUIRED = True
    from asgiref.sync import async_to_sync

    get, post = async_to_sync(async_client.get), async_to_sync(async_client.post)
    cancel = f"/api/batches/{batch.batch_id}/cancel"
    content = f"/api/files/{batch.output_file_id}/content"
    for response in (get("/api/batches"), get(content), post(cancel)):
        assert response.status_code == 401
    async_client.force_login(admin_user)
    (shown,) = get("/api/batches?limit=20").json()["data"]
    assert (shown["id"], shown["progress"]["percent"]) == (batch.batch_id, 100.0)
    assert get(content).status_code == 200
    assert post(cancel).status_code in (403, 409)  # the CSRF token is asked for where the client sends one


def test_the_admin_lists_all_and_shows_no_secret(batch, admin_client):
    make_schedule(webhook={"url": "https://example.com/", "secret": "whsec_" + "B" * 40})
    for name in ("storedfile", "batch", "schedule", "webhookdelivery"):
        page = admin_client.get(reverse(f"admin:inference_{name}_changelist"))
        assert page.status_code == 200
    for name, row in (("batch", batch), ("schedule", Schedule.objects.get())):
        page = admin_client.get(reverse(f"admin:inference_{name}_change", args=[row.pk]))
        assert page.status_code == 200
        assert "whsec_" not in page.content.decode()


@pytest.mark.parametrize(("action", "enabled"), [("disable", False), ("enable", True)])
def test_the_admin_switches_schedules(transactional_db, admin_client, action, enabled):
    row = make_schedule()
    Schedule.objects.update(is_enabled=not enabled)
    data = {"action": action, "_selected_action": [row.pk]}
    admin_client.post(reverse("admin:inference_schedule_changelist"), data, follow=True)
    row.refresh_from_db()
    assert row.is_enabled is enabled
