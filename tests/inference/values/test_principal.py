"""Principal: scopes by path, models of a key, keys left out of logs."""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import replace

import pytest

from inference.errors import PermissionRefused
from inference.values.principal import LOCAL, Principal, principal_current, principal_set, scope_of, without_keys

KEY = Principal("key", "tenant", "a key", key_id=1)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", "generate"),
        ("GET", "/v1/models", "models"),
        ("HEAD", "/v1/models/demo", "models"),
        ("DELETE", "/v1/models/demo", "admin"),
        ("POST", "/v1/batches", "files"),
        ("GET", "/v1/modelsx", "generate"),
        ("GET", "/v1/usage", None),
        ("GET", "/v1/keys", "admin"),
        ("GET", "/metrics", "metrics"),
        ("POST", "/v1/models/demo/load", "lifecycle"),
        ("POST", "/v1/models/demo/pin", "lifecycle"),
        ("POST", "/v1/models/demo/promote", "admin"),
        ("DELETE", "/api/delete", "admin"),
    ],
)
def test_scope_by_the_longest_path(method: str, path: str, scope: str | None) -> None:
    assert scope_of(method, path) == scope


def test_a_caller_is_held_to_its_scopes() -> None:
    KEY.check_scope("POST", "/v1/completions")
    with pytest.raises(PermissionRefused, match="needs an API key with the scope 'admin'; this one has files"):
        KEY.check_scope("GET", "/v1/keys")
    replace(KEY, scopes=frozenset({"admin"})).check_scope("GET", "/v1/keys")
    LOCAL.check_scope("POST", "/v1/models/demo/load")
    with pytest.raises(PermissionRefused, match="make one with blazr key create NAME --scope admin"):
        LOCAL.check_scope("GET", "/v1/keys")
    with pytest.raises(PermissionRefused, match="needs an account with the scope 'files'"):
        Principal("user", "user:1", "vera", scopes=frozenset({"models"})).check_scope("POST", "/api/jobs")
    replace(KEY, scopes=frozenset()).check_scope("GET", "/v1/usage")


def test_saving_a_state_computes_and_stores() -> None:
    """Whoever may only store files could have the model compute otherwise."""
    for own, missing in (("files", "generate"), ("generate", "files")):
        caller = replace(KEY, scopes=frozenset({own}))
        with pytest.raises(PermissionRefused, match=f"needs an API key with the scope '{missing}'"):
            caller.check_scope("POST", "/v1/states")
    replace(KEY, scopes=frozenset({"files", "generate"})).check_scope("POST", "/v1/states")
    for method, path in (("GET", "/v1/states"), ("POST", "/v1/states/a"), ("POST", "/v1/states/a/content")):
        replace(KEY, scopes=frozenset({"files"})).check_scope(method, path)


@pytest.mark.parametrize(
    ("priority", "keep_alive_s", "param"),
    [(-1, None, "priority"), (0, -1.0, "keep_alive"), (0, 0.0, "keep_alive"), (0, 299.0, "keep_alive"),
     (0, 3601.0, "keep_alive")],
)  # fmt: skip
def test_options_that_affect_others_need_their_scope(priority: int, keep_alive_s: float | None, param: str) -> None:
    with pytest.raises(PermissionRefused, match="needs an API key with the scope") as caught:
        KEY.check_options(priority=priority, keep_alive_s=keep_alive_s)
    assert caught.value.param == param
    scope = {"priority": "priority", "keep_alive": "lifecycle"}[param]
    for scopes in ({scope}, {"admin"}):
        replace(KEY, scopes=frozenset(scopes)).check_options(priority=priority, keep_alive_s=keep_alive_s)


def test_ordinary_options_need_no_scope() -> None:
    for priority, keep_alive_s in ((0, None), (100, 300.0), (1, 1800.0), (0, 3600.0)):
        KEY.check_options(priority=priority, keep_alive_s=keep_alive_s)


def test_a_key_is_held_to_its_models() -> None:
    KEY.check_model("anything")
    with pytest.raises(PermissionRefused, match="may not use the model 'b'; it is for a") as caught:
        replace(KEY, models=frozenset({"a"})).check_model("b")
    assert caught.value.param == "model"


def test_the_secret_of_a_key_is_left_out_of_text() -> None:
    assert without_keys("Bearer blazr_abcdefABCDEF_0123456789 x") == "Bearer blazr_abcdefABCDEF_… x"
    assert without_keys("blazr is a server") == "blazr is a server"


def test_the_caller_is_set_for_one_context() -> None:
    before = principal_current()  # views that tests have called in this thread set it too

    def set_and_read() -> Principal:
        principal_set(KEY)
        return principal_current()

    assert copy_context().run(set_and_read) is KEY
    assert principal_current() is before
