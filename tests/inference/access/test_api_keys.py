"""API keys: shown once, stored as a digest, checked without a query where that is possible."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.utils import timezone

from inference.access import api_keys
from inference.access.api_keys import (
    api_key_create,
    api_key_revoke,
    key_prefix,
    principal_of_key,
    principal_of_tenant,
    void_tenants,
)
from inference.errors import InvalidRequest, NotAuthenticated, NotFound
from inference.models import ApiKey
from inference.values.limits import MAX_LIMIT, KeyLimits
from tests.accounts import account


def test_a_key_is_shown_once_and_not_stored(db):
    row, key = api_key_create(name="ci")
    assert re.fullmatch(r"blazr_[0-9A-Za-z]{12}_[0-9A-Za-z]{46}", key)
    assert key_prefix(key) == row.prefix
    stored = repr(ApiKey.objects.filter(pk=row.pk).values().get())
    assert key not in stored
    assert key.rpartition("_")[2] not in stored


@pytest.mark.parametrize(
    "change", [lambda key: key[:-1] + ("a" if key[-1] != "a" else "b"), lambda key: key + "x", str.lower]
)
def test_a_mistyped_key_costs_no_query(db, change, django_assert_num_queries):
    _, key = api_key_create(name="ci")
    with django_assert_num_queries(0):
        assert key_prefix(change(key)) is None


def test_key_names_and_prefixes_are_checked(db):
    for name in ("", " ", "x" * 101, "a\0"):
        with pytest.raises(InvalidRequest):
            api_key_create(name=name)
    with pytest.raises(InvalidRequest):
        api_key_create(name="old", expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotFound):
        api_key_revoke(prefix="nobody\0")


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"scopes": ["generate", "everything"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"models": ["x" * 129]}, "models"),
        ({"models": ["a\0"]}, "models"),
        ({"limits": KeyLimits(requests=0)}, "requests"),
        ({"limits": KeyLimits(lines=MAX_LIMIT + 1)}, "lines"),
    ],
)
def test_wrong_rules_are_refused_and_nothing_is_stored(db, values, param):
    with pytest.raises(InvalidRequest) as caught:
        api_key_create(name="ci", **values)
    assert caught.value.param == param
    assert not ApiKey.objects.exists()


def test_a_key_has_its_own_limits_or_the_servers(db, settings):
    settings.BLAZR_KEY_RPM, settings.BLAZR_KEY_TPM = 60, 1000
    row, _ = api_key_create(name="ci", models=["b", "a", "a"], limits=KeyLimits(requests=5, lines=7))
    assert row.allowed_models == ["a", "b"]
    assert api_keys.key_limits(row) == KeyLimits(
        requests=5, tokens=1000, concurrent=settings.BLAZR_KEY_CONCURRENT, lines=7
    )


@pytest.mark.django_db(transaction=True)
async def test_a_key_is_found_by_its_secret_and_cached_for_a_moment(monkeypatch, django_assert_num_queries):
    row, key = await sync_to_async(api_key_create)(name="ci", models=["tiny"])
    found = await principal_of_key(f"Bearer {key}")
    assert (found.tenant, found.name, found.key_id, found.models) == (f"key:{row.pk}", "ci", row.pk, {"tiny"})
    assert await principal_of_key(f"bearer  {key} ") == found
    assert await principal_of_key(f"Basic {key}") is None
    assert await principal_of_key("Bearer") is None
    other = key[:-46] + api_keys._random_text(40)
    other += api_keys._checksum(other)
    assert key_prefix(other) == row.prefix
    assert await principal_of_key(f"Bearer {other}") is None  # another secret under the same id
    with monkeypatch.context() as patched:
        patched.setattr(api_keys, "_read_key", lambda prefix: 1 / 0)
        assert await principal_of_key(f"Bearer {key}") == found
    await sync_to_async(ApiKey.objects.filter(pk=row.pk).update)(revoked_at=timezone.now())
    assert await principal_of_key(f"Bearer {key}") == found  # revoked elsewhere: until the cached row is too old
    monkeypatch.setattr(api_keys, "CACHE_S", -1.0)
    assert await principal_of_key(f"Bearer {key}") is None


@pytest.mark.django_db(transaction=True)
async def test_a_cached_key_ends_with_its_expiry(monkeypatch):
    _, key = await sync_to_async(api_key_create)(name="ci", expires_at=timezone.now() + timedelta(hours=1))
    assert await principal_of_key(f"Bearer {key}") is not None
    later = timezone.now() + timedelta(hours=2)
    monkeypatch.setattr(api_keys.timezone, "now", lambda: later)
    assert await principal_of_key(f"Bearer {key}") is None


@pytest.mark.django_db(transaction=True)
async def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(api_keys, "MAX_CACHED_KEYS", 3)
    for number in range(5):
        _, key = await sync_to_async(api_key_create)(name=f"k{number}")
        assert await principal_of_key(f"Bearer {key}") is not None
        assert len(api_keys._cache) <= 3


def test_a_revoked_key_is_void_for_work_that_goes_on_without_a_request(db):
    rows = [api_key_create(name=name)[0] for name in ("valid", "revoked", "expired")]
    tenants = [f"key:{row.pk}" for row in rows]
    assert void_tenants(iter([])) == []
    api_key_revoke(prefix=rows[1].prefix)
    assert api_key_revoke(prefix=rows[1].prefix).revoked_at is not None
    ApiKey.objects.filter(pk=rows[2].pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert sorted(void_tenants([*tenants, "local", "key:nonsense", "key:" + "9" * 30])) == sorted(tenants[1:])
    assert principal_of_tenant(tenants[0]).key_id == rows[0].pk
    for tenant in (*tenants[1:], "key:999999", "key:nonsense"):
        with pytest.raises(NotAuthenticated):
            principal_of_tenant(tenant)
    with pytest.raises(NotAuthenticated, match="inactive"):
        principal_of_tenant("user:1")
    assert principal_of_tenant("local").kind == "local"


def test_an_account_that_may_not_sign_in_is_void_for_work_that_goes_on_without_a_request(db, django_assert_num_queries):
    users = [account(name, "member") for name in ("active", "inactive", "plain", "gone")]
    tenants = [f"user:{user.pk}" for user in users]
    assert void_tenants(tenants) == []
    User.objects.filter(pk=users[1].pk).update(is_active=False)
    User.objects.filter(pk=users[2].pk).update(is_staff=False)
    users[3].delete()
    with django_assert_num_queries(1):
        assert sorted(void_tenants([*tenants, "local", "user:nobody"])) == sorted(tenants[1:])
    with django_assert_num_queries(0):
        assert void_tenants(["local"]) == []
