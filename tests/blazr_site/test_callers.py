"""Who sends a body: a key in either header, the session of a staff member, or somebody unknown."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from blazr_site.callers import body_caller
from blazr_site.routes import route_or_none
from inference.access.api_keys import api_key_create
from inference.errors import NotAuthenticated, PermissionRefused


def caller(path: str, headers: dict[str, str] | None = None, method: str = "POST") -> str | None:
    from asgiref.sync import async_to_sync

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"client": ("127.0.0.1", 50000), "method": method, "path": path, "headers": raw}
    found = async_to_sync(body_caller)(scope, route_or_none(path))
    principal = scope.get("principal")
    assert (None if principal is None else principal.tenant) == (None if (found or "").startswith("user:") else found)
    return found


def cookie_of(user: User) -> dict[str, str]:
    client = Client()
    client.force_login(user)
    return {"cookie": f"a=b; sessionid={client.cookies['sessionid'].value}"}


@pytest.fixture
def keys(settings, transactional_db) -> None:
    settings.BLAZR_API_KEY_REQUIRED = True


def test_a_key_is_known_in_either_header(keys):
    row, key = api_key_create(name="ci")
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
        for path in ("/v1/chat/completions", "/api/jobs", "/login/"):
            assert caller(path, headers) == f"key:{row.pk}"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong"}, {"x-api-key": "wrong"}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/generate", "/v1/messages", "/v1/files", "/api/jobs"])
def test_without_a_key_the_api_takes_no_body(keys, path, headers):
    with pytest.raises(NotAuthenticated):
        caller(path, headers)


def test_strangers_may_send_forms_and_whatever_no_view_reads(keys):
    for path in ("/login/", "/nowhere", "/v1/nothing", "/livez"):
        assert caller(path) is None
        assert caller(path, {"authorization": "Bearer wrong", "cookie": "sessionid=wrong"}) is None
    assert caller("/v1/chat/completions", method="PUT") is None  # the view says 405


def test_sessions_count_where_the_view_takes_them(keys, admin_user):
    headers = cookie_of(admin_user)
    for path in ("/api/jobs", "/registry/uploads", "/models/upload/"):
        assert caller(path, headers) == f"user:{admin_user.pk}"
    with pytest.raises(NotAuthenticated):
        caller("/v1/chat/completions", headers)


def test_sessions_of_others_than_staff_count_for_nothing(keys):
    headers = cookie_of(User.objects.create_user("guest"))
    assert caller("/registry/uploads", headers) is None
    with pytest.raises(NotAuthenticated):
        caller("/api/jobs", headers)


def test_where_no_key_is_required_all_are_one_caller(settings, transactional_db):
    settings.BLAZR_API_KEY_REQUIRED = False
    assert caller("/v1/chat/completions") == caller("/login/", {"authorization": "Bearer sk-any"}) == "local"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/states/a/content", "/api/blobs/sha256:0", "/api/batches/check"])
def test_files_need_their_scope_before_they_are_read(keys, path):
    _, key = api_key_create(name="ci", scopes=["generate", "models"])
    with pytest.raises(PermissionRefused):
        caller(path, {"authorization": f"Bearer {key}"})
    row, key = api_key_create(name="full", scopes=["admin"])
    assert caller(path, {"authorization": f"Bearer {key}"}) == f"key:{row.pk}"


def test_an_account_without_a_role_sends_no_files(keys, admin_user):
    account = User.objects.create_user("guest", is_staff=True)
    with pytest.raises(PermissionRefused):
        caller("/api/batches/check", cookie_of(account))
    assert caller("/api/batches/check", cookie_of(admin_user)) == f"user:{admin_user.pk}"
