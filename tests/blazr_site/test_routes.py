"""Routes are found as Django finds them, and the table of large bodies names routes that exist."""

from __future__ import annotations

import pytest
from django.urls import Resolver404, URLPattern, URLResolver, get_resolver

from blazr_site import routes
from blazr_site.routes import find_route, is_bare, route_or_none


def test_only_routes_without_parameters_are_remembered(monkeypatch):
    monkeypatch.setattr(routes, "_fixed", {})
    fixed, model = find_route("/v1/completions"), find_route("/v1/models/a/b")
    assert find_route("/v1/completions") is fixed
    assert (fixed.url_name, model.url_name, model.kwargs) == ("completions", "model", {"model_id": "a/b"})
    assert find_route("/v1/models/c").kwargs == {"model_id": "c"}
    assert find_route("/v1/nothing").kwargs == {"rest": "nothing"}
    with pytest.raises(Resolver404):
        find_route("/nowhere")
    assert route_or_none("/nowhere") is None
    assert set(routes._fixed) == {"/v1/completions"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/livez", True), ("/v1/chat/completions", True), ("/v1/nothing", True), ("/api/chat", True),
        ("/api/pull", True), ("/api/jobs", False), ("/docs", False), ("/schema", False), ("/login/", False),
        ("/api/nothing", False), ("/registry/uploads", False), ("/admin/", False),
    ],
)  # fmt: skip
def test_views_of_the_api_without_sessions_need_no_middleware(path, expected):
    assert is_bare(route_or_none(path)) is expected


def _names(resolver: URLResolver, namespace: str = "") -> set[str]:
    found: set[str] = set()
    for item in resolver.url_patterns:
        if isinstance(item, URLPattern):
            found.add(f"{namespace}{item.name}")
        else:
            found |= _names(item, f"{namespace}{item.namespace}:" if item.namespace else namespace)
    return found


def test_the_table_names_routes_that_exist():
    assert {*routes.LARGE_ROUTES, *routes.FILE_ROUTES, routes.PIECE_ROUTE} <= _names(get_resolver())
