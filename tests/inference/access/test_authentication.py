"""Who sent a request: by key, by session, or anybody on a server that requires no key."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import AsyncRequestFactory

from inference.access.authentication import principal_authenticate, principal_of_websocket
from inference.errors import InvalidRequest, NotAuthenticated, PermissionRefused
from inference.values.principal import LOCAL, UNAUTHENTICATED, Principal

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


def request(method: str = "post", user: Any = None, peer: str | None = "127.0.0.1", **headers: str) -> Any:
    found = getattr(AsyncRequestFactory(), method)("/v1/models", headers=headers)
    found.META["REMOTE_ADDR"] = peer
    if user is not None:

        async def auser() -> Any:
            return user

        found.auser = auser
    return found


def staff(**values: bool) -> User:
    return User(pk=7, username="ada", **{"is_staff": True, "is_active": True, "is_superuser": True, **values})


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


@pytest.mark.parametrize("given", ["Bearer blazr_wrong", "bearer  blazr_wrong ", "blazr_wrong"])
async def test_a_wrong_key_of_this_server_is_refused_also_where_none_is_required(settings, given):
    """Otherwise a revoked key goes on as the local caller, who may do more than the key."""
    for no_auth in (False, True):
        settings.BLAZR_NO_AUTH = no_auth
        with pytest.raises(NotAuthenticated, match="wrong, expired or revoked"):
            await principal_authenticate(request(authorization=given))
        assert await principal_of_websocket(scope(authorization=given)) is None
    with pytest.raises(NotAuthenticated, match="wrong, expired or revoked"):
        await principal_authenticate(request(**{"x-api-key": "blazr_wrong"}))


FORWARDED = [
    ("forwarded", "for=192.0.2.60;proto=https"),
    ("via", "1.1 proxy"),
    ("x-real-ip", "192.0.2.60"),
    ("x-forwarded-for", "127.0.0.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "llm.example"),
    ("x-original-url", "/v1/keys"),
    ("cf-connecting-ip", "192.0.2.60"),
]


@pytest.mark.parametrize(("name", "value"), FORWARDED)
async def test_what_a_proxy_has_forwarded_needs_a_key_whatever_the_settings(name, value):
    with pytest.raises(NotAuthenticated, match="is needed"):
        await principal_authenticate(request(**{name: value}))
    assert await principal_authenticate(request(**{name: value}, authorization="Bearer good")) == KEY
    assert await principal_of_websocket(scope(**{name: value})) is None


@pytest.mark.parametrize("peer", ["192.168.1.7", "::ffff:10.0.0.1", "172.17.0.1", None, ""])
async def test_another_machine_needs_a_key_whatever_the_settings(peer):
    """uvicorn that was started by hand on 0.0.0.0 has the settings of a server on loopback."""
    with pytest.raises(NotAuthenticated, match="is needed"):
        await principal_authenticate(request("get", peer=peer))
    client = None if peer is None else (peer, 50000)
    assert await principal_of_websocket(scope() | {"client": client}) is None


async def test_nobody_without_a_key_is_an_admin(settings):
    """Otherwise a stranger makes itself a key."""
    caller = await principal_authenticate(request())
    assert not caller.has_scope("admin")
    with pytest.raises(PermissionRefused, match="blazr key create NAME --scope admin"):
        caller.check_scope("POST", "/v1/keys")
    settings.BLAZR_NO_AUTH = True
    stranger = await principal_authenticate(request(peer="192.168.1.7"))
    assert stranger == UNAUTHENTICATED
    assert not any(stranger.has_scope(name) for name in ("admin", "lifecycle", "priority", "metrics"))


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
    found = {"headers": [(b"host", b"testserver"), *encoded], "client": ("127.0.0.1", 50000)}
    return found if user is None else {**found, "user": user}


async def test_a_websocket_has_a_key_or_a_session_where_one_is_required(key_required):
    assert await principal_of_websocket(scope(authorization="Bearer good")) == KEY
    assert await principal_of_websocket(scope()) is None
    assert await principal_of_websocket(scope(authorization="Bearer bad")) is None
    assert await principal_of_websocket(scope(authorization="Bearer b\xe4d")) is None
    found = await principal_of_websocket(scope(user=staff()))
    assert found is not None and found.tenant == "user:7"
    assert await principal_of_websocket(scope(user=staff(is_staff=False))) is None
    assert await principal_of_websocket(scope(user=AnonymousUser())) is None


async def test_a_page_of_another_site_can_not_open_a_websocket_without_a_key():
    assert await principal_of_websocket(scope()) == LOCAL
    assert await principal_of_websocket(scope(origin="http://testserver")) == LOCAL
    assert await principal_of_websocket(scope(origin="http://evil.example")) is None
    assert await principal_of_websocket(scope(origin="http://evil.example", authorization="Bearer good")) == KEY


@pytest.mark.parametrize(("age_s", "is_refused"), [(0.0, False), (30.0, True)])
async def test_a_key_that_was_revoked_during_a_long_body_is_refused_at_its_end(age_s, is_refused):
    sent = request(authorization="Bearer blazr_revoked")
    sent.scope |= {"principal": KEY, "principal_at": time.monotonic() - age_s}
    if is_refused:
        with pytest.raises(NotAuthenticated):
            await principal_authenticate(sent)
    else:
        assert await principal_authenticate(sent) == KEY
