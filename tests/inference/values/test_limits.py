"""Estimates, headers and scopes, without Redis."""

from __future__ import annotations

import pytest

from inference.errors import PermissionRefused
from inference.values.limits import Budget, budget, budget_headers, duration_text, estimate_tokens, text_tokens
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal, scope_of
from inference.values.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.35, "350ms"), (1, "1s"), (1.52, "1.6s"), (59.99, "1m0s"), (60, "1m0s"), (366.04, "6m6.1s")],
)
def test_durations_are_written_as_openai_does(seconds, text):
    assert duration_text(seconds) == text


def test_a_bucket_in_debt_shows_nothing_left_and_a_longer_wait():
    found = budget(60, -30.0)
    assert found == Budget(60, -30, 90.0)
    headers = budget_headers(None, found)
    assert headers == {
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }


def _plan(*prompts, endpoint="completion", n=1, max_tokens=None):
    return GenerationPlan(endpoint, "m", prompts, SamplingParams(n=n, max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        (_plan({"token_ids": [1, 2, 3]}, max_tokens=7), 10),
        (_plan({"text": "x" * 9}, {"text": "é"}, n=2, max_tokens=5), 3 + 1 + 4 * 5),
        (_plan({"text": ""}), 16),
        (_plan({"inputs": [{"text": "x" * 8}, {"token_ids": [1, 2]}]}, {"inputs": []}, endpoint="embedding"), 4),
        (_plan({"messages": [{"role": "user", "content": "abcd"}]}, endpoint="chat"), 4 + 1 + 256),
        (
            _plan({"messages": [{"role": "user", "content": [{"type": "text", "text": "abcdefgh"}]}]}, max_tokens=0),
            4 + 2,
        ),
        (_plan({"messages": [{"role": "assistant", "content": None}]}, max_tokens=1), 5),
        (_plan({"messages": [], "template_kwargs": {"tools": ["x" * 87]}}, max_tokens=0), 25 + 1),
    ],
)
def test_estimates(plan, wanted):
    assert estimate_tokens(plan) == wanted


def test_lone_surrogates_can_be_estimated():
    assert text_tokens("\ud800") == 1


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", "generate"),
        ("POST", "/tokenize", "generate"),
        ("GET", "/v1/models", "models"),
        ("HEAD", "/v1/models", "models"),
        ("GET", "/v1/models/a/b", "models"),
        ("POST", "/v1/models/a/load", "lifecycle"),
        ("GET", "/v1/modelsx", "generate"),
        ("POST", "/v1/files", "files"),
        ("GET", "/v1/batches/b", "files"),
        ("POST", "/api/jobs", "files"),
        ("GET", "/v1/usage", None),
        ("POST", "/api/chat", "generate"),
        ("DELETE", "/api/delete", "admin"),
    ],
)
def test_scopes_of_paths(method, path, scope):
    assert scope_of(method, path) == scope


def test_a_scope_opens_its_paths_only_and_admin_opens_all():
    files = Principal("key", "key:1", "k", 1, scopes=frozenset({"files"}))
    files.check_scope("POST", "/v1/files")
    files.check_scope("GET", "/v1/usage")
    with pytest.raises(PermissionRefused, match="'generate'"):
        files.check_scope("POST", "/v1/completions")
    admin = Principal("key", "key:2", "a", 2, scopes=frozenset({"admin"}))
    for path in ("/v1/models/x/load", "/v1/completions", "/v1/files"):
        admin.check_scope("POST", path)
    assert admin.sees_everything
    assert not files.sees_everything
    assert not Principal("key", "key:3", "k", 3).sees_everything
