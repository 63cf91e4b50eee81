"""Who a stored tenant is, and where pages say it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.access.api_keys import api_key_create, api_key_revoke
from inference.models import ApiKey, UsageDay, UsageRecord
from inference.pages.callers import Caller, caller_of, callers_of
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch
from tests.inference.rows import make_checkpoint
from tests.inference.schedules.fakes import make_schedule

pytestmark = pytest.mark.django_db
HOSTILE = "<b>nightly</b>"


def test_keys_and_accounts_have_their_names_and_what_is_wrong_with_them(django_assert_num_queries) -> None:
    names = ("good", "revoked", "expired", "gone", "old")
    keys = [api_key_create(name=name)[0] for name in names]
    api_key_revoke(prefix=keys[1].prefix)
    ApiKey.objects.filter(pk=keys[2].pk).update(expires_at=timezone.now() - timedelta(days=1))
    ApiKey.objects.filter(pk=keys[3].pk).delete()
    ApiKey.objects.filter(pk=keys[4].pk).update(name="")
    tenants = [f"key:{key.pk}" for key in keys]
    mia, ida, max_ = account("mia", "operator"), account("ida", "operator"), account("max", "operator")
    ida.is_active = max_.is_staff = False
    ida.save(), max_.save()
    users = [f"user:{user.pk}" for user in (mia, ida, max_)]
    odd = ["local", "", "user:x", "key:" + "9" * 30, "user:999"]
    with django_assert_num_queries(2):
        found = callers_of([*tenants, *users, *odd])
    assert [(found[tenant].name, found[tenant].problem) for tenant in tenants] == [
        ("good", ""), ("revoked", "its key was revoked"), ("expired", "its key has expired"),
        (tenants[3], "its key was deleted"), (keys[4].prefix, ""),
    ]  # fmt: skip
    assert [(found[tenant].name, found[tenant].problem) for tenant in users] == [
        ("mia", ""), ("ida", "its account is inactive"), ("max", "its account is inactive"),
    ]  # fmt: skip
    assert [found[tenant].name for tenant in odd] == odd and found["user:999"].problem == "its account was deleted"
    assert caller_of("local") == Caller("local", "local")


def test_pages_show_names_with_the_id_in_the_title(client: Client, settings, tmp_path) -> None:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    make_checkpoint()
    user = account("edwin", "superuser")
    client.force_login(user)
    key, _ = api_key_create(name=HOSTILE, scopes=("files", "generate"))
    tenants = {f"user:{user.pk}": "edwin", f"key:{key.pk}": "&lt;b&gt;nightly&lt;/b&gt;"}
    for number, tenant in enumerate(tenants):
        fixed = {"endpoint": "chat", "model": "m", "outcome": "completed", "duration_s": 1.0}
        UsageRecord.objects.create(request_id=f"r{number}", created_at=timezone.now(), tenant=tenant, **fixed)
        UsageDay.objects.create(day=timezone.now().date(), tenant=tenant, model="m", requests=1)
    batch, schedule = make_batch([line("a")]), make_schedule(principal_of_staff(user))
    type(batch).objects.update(tenant=f"user:{user.pk}")
    for path, names in {
        "/requests/": tenants,
        "/requests/r0/": {f"user:{user.pk}": "edwin"},
        "/keys/?group_by=key": {f"user:{user.pk}": "edwin", key.prefix: "&lt;b&gt;nightly&lt;/b&gt;"},
        f"/batches/{batch.batch_id}/": {f"user:{user.pk}": "edwin"},
        "/schedules/": {f"user:{user.pk}": "edwin"},
        f"/schedules/{schedule.schedule_id}/": {f"user:{user.pk}": "edwin"},
    }.items():
        text = client.get(path).content.decode()
        for tenant, name in names.items():
            assert f'<span title="{tenant}">{name}</span>' in text, path
            assert f">{tenant}</span>" not in text and HOSTILE not in text
