"""The admin pages: keys are made and revoked there, everything else is for looking."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.contrib.messages import get_messages
from django.test import Client
from django.utils import timezone

from inference.access.api_keys import api_key_create, key_prefix
from inference.files.store import FileWriter
from inference.models import ApiKey, GenerationJob, JobState, Schedule, StoredFile, StoredState, UsageDay
from inference.states.services import StateFacts, state_create
from inference.values.messages import StateOrder
from tests.inference.rows import damage, make_checkpoint

pytestmark = pytest.mark.django_db

KEYS = "/admin/inference/apikey/"


def messages(response) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_a_new_key_is_shown_once_and_has_its_rules(admin_client: Client):
    form = {"name": "ci", "scopes": ["generate"], "allowed_models": " b, a,, ", "requests_per_minute": "5"}
    response = admin_client.post(f"{KEYS}add/", form)
    assert response.status_code == 302, response.context["errors"]
    row = ApiKey.objects.get()
    (key,) = [found[0] for text in messages(response) if (found := re.findall(r"blazr_\w+", text))]
    assert key_prefix(key) == row.prefix
    assert (row.name, row.scopes, row.allowed_models, row.requests_per_minute) == ("ci", ["generate"], ["a", "b"], 5)
    assert key in admin_client.get(KEYS).content.decode()
    assert key not in admin_client.get(f"{KEYS}{row.pk}/change/").content.decode()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scopes": []}, "required"),
        ({"scopes": ["everything"]}, "valid choice"),
        ({"requests_per_minute": "0"}, "must be from 1"),
        ({"allowed_models": "x" * 200}, "1 to 128 characters"),
    ],
)
def test_rules_are_checked_in_the_form(admin_client: Client, change, text):
    form = {"name": "ci", "scopes": ["generate"], "allowed_models": ""} | change
    response = admin_client.post(f"{KEYS}add/", form)
    assert response.status_code == 200
    assert text in response.content.decode()
    row, _ = api_key_create(name="known")
    assert admin_client.post(f"{KEYS}{row.pk}/change/", form).status_code == 200
    assert ApiKey.objects.count() == 1


def test_a_key_that_the_service_refuses_leaves_no_row_and_no_log_entry(admin_client: Client):
    from django.contrib.admin.models import LogEntry

    past = timezone.now() - timedelta(days=1)
    form = {
        "name": "old", "scopes": ["generate"], "expires_at_0": f"{past:%Y-%m-%d}", "expires_at_1": f"{past:%H:%M:%S}",
    }  # fmt: skip
    response = admin_client.post(f"{KEYS}add/", form)
    assert any("has passed" in text for text in messages(response))
    assert not ApiKey.objects.exists()
    assert not LogEntry.objects.exists()


def test_keys_are_revoked_not_deleted(admin_client: Client):
    rows = [api_key_create(name=name)[0] for name in ("a", "b", "c")]
    assert admin_client.post(f"{KEYS}{rows[0].pk}/delete/", {"post": "yes"}).status_code == 403
    action = {"action": "revoke", "_selected_action": [row.pk for row in rows[:2]]}
    assert admin_client.post(KEYS, action).status_code == 302
    assert [row.revoked_at is not None for row in ApiKey.objects.order_by("pk")] == [True, True, False]
    assert "scopes" in admin_client.get(KEYS).content.decode()


@pytest.mark.parametrize(
    "name", ["usagerecord", "usageday", "generationjob", "storedfile", "batch", "schedule", "webhookdelivery"]
)
def test_rows_of_services_can_be_listed_but_not_made(admin_client: Client, name):
    assert admin_client.get(f"/admin/inference/{name}/").status_code == 200
    assert admin_client.get(f"/admin/inference/{name}/add/").status_code == 403


@pytest.fixture
def saved_state(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    writer = FileWriter()
    writer.write(b"content")
    order = StateOrder(name="manual", tenant="key:1", model="tiny", is_pinned=True, expires_s=None, replaces=False)
    return state_create(writer=writer, facts=StateFacts("tiny", "a" * 64, 7, has_conversation=False), order=order)


STATES = "/admin/inference/storedstate/"


def test_states_are_listed_and_downloaded_by_those_who_may(saved_state, client: Client, django_user_model):
    async def whole(response) -> bytes:
        return b"".join([piece async for piece in response.streaming_content])

    def account(name: str, *codenames: str) -> django_user_model:
        made = django_user_model.objects.create_user(name, is_staff=True)
        made.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return made

    url = f"{STATES}{saved_state.pk}/content/"
    for codenames, listed, link, content in (
        ((), 403, False, 403),
        (("view_storedstate",), 200, False, 403),
        (("view_storedstate", "scope_admin"), 200, True, 200),
    ):
        client.force_login(account(str(len(codenames)), *codenames))
        page = client.get(STATES)
        assert page.status_code == listed
        text = page.content.decode()
        assert (url in text) is link
        if listed == 200:
            assert all(word in text for word in ("manual", "tiny", "aaaaaaaaaaaaaaaa…", "7 B", "key:1"))
        response = client.get(url)
        assert response.status_code == content
        if content == 200:
            assert async_to_sync(whole)(response) == b"content"
            assert response["Content-Disposition"] == 'attachment; filename="manual.state"'
            assert client.get(f"{STATES}{saved_state.pk + 1}/content/").status_code == 404


def test_states_are_deleted_with_their_files(saved_state, client: Client, django_user_model, settings):
    viewer = django_user_model.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename="view_storedstate"))
    client.force_login(viewer)
    assert client.post(f"{STATES}{saved_state.pk}/delete/", {"post": "yes"}).status_code == 403
    operator = django_user_model.objects.create_user("operator", is_staff=True)
    operator.user_permissions.set(Permission.objects.filter(codename__in=("view_storedstate", "delete_storedstate")))
    client.force_login(operator)
    action = {"action": "delete_selected", "_selected_action": [saved_state.pk], "post": "yes"}
    assert client.post(STATES, action).status_code == 302
    assert not StoredState.objects.exists() and not StoredFile.objects.exists()
    assert not (settings.BLAZR_FILES_DIR / saved_state.file.sha256).exists()


def test_operators_may_look_at_states_and_delete_them():
    codenames = {"view_storedstate", "delete_storedstate"}
    for role, has in (("operator", codenames), ("member", set()), ("viewer", set())):
        found = Group.objects.get(name=role).permissions.filter(codename__in=codenames)
        assert set(found.values_list("codename", flat=True)) == has


def test_a_jobs_prompt_and_result_stay_out(admin_client: Client):
    job = GenerationJob.objects.create(
        tenant="key:1", endpoint="completion", model="tiny", checkpoint_id=make_checkpoint().pk, digest="d",
        plan='{"secret": "a prompt"}', state=JobState.QUEUED, created_at=timezone.now(),
    )  # fmt: skip
    page = admin_client.get(f"/admin/inference/generationjob/{job.pk}/change/")
    assert page.status_code == 200
    assert "tiny" in page.content.decode()
    assert "a prompt" not in page.content.decode()
    assert admin_client.post(f"/admin/inference/generationjob/{job.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("per_page", [2, 100])
def test_a_damaged_job_is_left_out_of_the_list(admin_client: Client, monkeypatch: pytest.MonkeyPatch, per_page: int):
    monkeypatch.setattr(type(admin.site._registry[GenerationJob]), "list_per_page", per_page)
    jobs = [
        GenerationJob.objects.create(
            tenant="key:1", endpoint="completion", model="tiny", checkpoint_id=uuid.uuid4(), digest="d",
            plan='{"endpoint": "completion", "model": "tiny", "prompts": [], "params": {}}',
            state=JobState.QUEUED, created_at=timezone.now(),
        )
        for _ in range(3)
    ]  # fmt: skip
    damage(jobs[2], "job_id")  # the newest one is on the first page
    page = admin_client.get("/admin/inference/generationjob/")
    assert page.status_code == 200
    assert str(jobs[1].job_id) in page.content.decode()


def test_usage_is_exported_as_csv_with_formulas_quoted(admin_client: Client):
    for tenant in ("key:1", "=cmd()"):
        UsageDay.objects.create(day=timezone.now().date(), tenant=tenant, model="tiny", requests=3)
    selected = list(UsageDay.objects.values_list("pk", flat=True))
    response = admin_client.post("/admin/inference/usageday/", {"action": "export", "_selected_action": selected})
    lines = response.getvalue().decode().splitlines()
    assert response["Content-Disposition"] == 'attachment; filename="usage.csv"'
    assert lines[0].startswith("day,tenant,model")
    assert len(lines) == 3
    assert not any(",=cmd" in line for line in lines)
    assert any("key:1,tiny" in line for line in lines)


def test_schedules_are_switched_on_and_off(admin_client: Client):
    row = Schedule.objects.create(
        tenant="key:1", cron="0 * * * *", request={}, next_run_at=timezone.now(), created_at=timezone.now()
    )
    path = "/admin/inference/schedule/"
    for action, is_enabled in (("disable", False), ("enable", True)):
        admin_client.post(path, {"action": action, "_selected_action": [row.pk]})
        row.refresh_from_db()
        assert row.is_enabled is is_enabled
