"""Who sent a request: by key, by session, or anybody on a server that requires no key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import AsyncRequestFactory

from inference.access.authentication import principal_authenticate, principal_of_websocket
from inference.errors import InvalidRequest, NotAuthenticated, PermissionRefused
from inference.values.principal import LOCAL, Principal

KEY = Principal("key", "key:1", "ci", 1)


@pytest.fixture(autouse=True)
def known_key(monkeypatch, settings):
    """The key ``good`` is valid; no row is read."""
    settings.ALLOWED_HOSTS = ["testserver"]

    async def principal_of_key(authorization: str) -> Principal | None:
        return KEY if authorization == "Bearer good" else None

    monkeypatch.setattr("inference.access.authentication.principal_of_key", principal_of_key)


@pytest.fixture
def key_required(settings):
    settings.BLAZR_API_KEY_REQUIRED = True


def request(method: str = "post", user: Any = None, **headers: str) -> Any:
    found = getattr(AsyncRequestFactory(), method)("/v1/models", headers=headers)
    if user is not None:

        async def auser() -> Any:
            return user

        found.auser = auser
    return found


def staff(**values: bool) -> User:
    return User(pk=7, username="ada", **{"is_staff": True, "is_active": True, **values})


@pytest.mark.parametrize("headers", [{"authorization": "Bearer good"}, {"x-api-key": "good"}])
async def test_a_key_comes_in_either_header(key_required, headers):
    assert await principal_authenticate(request(**headers)) == KEY


async def test_authorization_goes_before_anthropics_header(key_required):
    with pytest.raises(NotAuthenticated, match="wrong, expired or revoked"):
        await principal_authenticate(request(**{"authorization": "Bearer bad", "x-api-key": "good"}))


async def test_a_missing_key_is_refused_where_one_is_required(key_required):
    with pytest.raises(NotAuthenticated, match="is needed"):
        await principal_authenticate(request())


async def test_without_a_required_key_any_caller_is_local_unless_its_key_is_known():
    assert await principal_authenticate(request()) == LOCAL
    assert await principal_authenticate(request(authorization="Bearer bad")) == LOCAL
    assert await principal_authenticate(request(authorization="Bearer good")) == KEY


@pytest.mark.parametrize(
    ("method", "origin", "is_refused"),
    [
        ("post", "http://testserver", False),
        ("post", "https://testserver", False),
        ("post", "http://testserver.evil.example", True),
        ("post", "null", True),
        ("delete", "http://evil.example", True),
        ("get", "http://evil.example", False),
    ],
)
async def test_pages_of_other_sites_need_a_key_for_what_changes_something(method, origin, is_refused):
    if is_refused:
        with pytest.raises(PermissionRefused, match="another origin"):
            await principal_authenticate(request(method, origin=origin))
    else:
        assert await principal_authenticate(request(method, origin=origin)) == LOCAL
    assert await principal_authenticate(request(method, origin=origin, authorization="Bearer good")) == KEY


async def test_a_name_that_was_rebound_to_this_server_is_refused():
    with pytest.raises(InvalidRequest, match="Host header"):
        await principal_authenticate(request("get", host="evil.example"))


async def test_a_session_counts_where_it_is_allowed_and_needs_the_csrf_token(key_required):
    with pytest.raises(NotAuthenticated):
        await principal_authenticate(request("get", user=staff()))
    found = await principal_authenticate(request("get", user=staff()), session_allowed=True)
    assert (found.kind, found.tenant, found.name) == ("user", "user:7", "ada")
    with pytest.raises(PermissionRefused, match="CSRF"):
        await principal_authenticate(request("post", user=staff()), session_allowed=True)
    assert await principal_authenticate(request(user=staff(), authorization="Bearer good"), session_allowed=True) == KEY


@pytest.mark.parametrize("user", [AnonymousUser(), staff(is_staff=False), staff(is_active=False)])
async def test_only_active_staff_has_a_session(key_required, user):
    with pytest.raises(NotAuthenticated):
        await principal_authenticate(request("get", user=user), session_allowed=True)


# --- WebSockets


def scope(user: Any = None, **headers: str) -> dict[str, Any]:
    encoded = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    return {"headers": [(b"host", b"testserver"), *encoded], **({} if user is None else {"user": user})}


async def test_a_websocket_has_a_key_or_a_session_where_one_is_required(key_required):
    assert await principal_of_websocket(scope(authorization="Bearer good")) == KEY
    assert await principal_of_websocket(scope()) is None
    assert await principal_of_websocket(scope(authorization="Bearer bad")) is None
    assert await principal_of_websocket(scope(authorization="Bearer b\xe4d")) is None
    found = await principal_of_websocket(scope(user=staff()))
    assert found is not None and found.tenant == "user:7"
    assert await principal_of_websocket(scope(user=staff(is_staff=False))) is None
    assert await principal_of_websocket(scope(user=SimpleNamespace(is_authenticated=False))) is None


async def test_a_page_of_another_site_can_not_open_a_websocket_without_a_key():
    assert await principal_of_websocket(scope()) == LOCAL
    assert await principal_of_websocket(scope(origin="http://testserver")) == LOCAL
    assert await principal_of_websocket(scope(origin="http://evil.example")) is None
    assert await principal_of_websocket(scope(origin="http://evil.example", authorization="Bearer good")) == KEY
