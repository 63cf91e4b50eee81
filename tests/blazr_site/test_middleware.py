"""Middleware: the policy of the pages, and callers of uploads by key."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import RequestFactory

from blazr_site.middleware import POLICY, admin_keys, content_security_policy
from inference.access.api_keys import api_key_create
from inference.errors import NotAuthenticated


def serve(middleware, request, *, is_async):
    seen = []
    if is_async:

        async def async_view(request):
            seen.append(getattr(request, "api_caller", None))
            return HttpResponse()

        return async_to_sync(middleware(async_view))(request), seen[0]

    def view(request):
        seen.append(getattr(request, "api_caller", None))
        return HttpResponse()

    return middleware(view)(request), seen[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_pages_have_the_policy(is_async):
    response, _ = serve(content_security_policy, RequestFactory().get("/"), is_async=is_async)
    assert response["Content-Security-Policy"] == POLICY


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_key_of_an_upload_is_looked_up_and_no_other(is_async):
    key = {"HTTP_AUTHORIZATION": f"Bearer {api_key_create(name='boss', scopes=['admin'])[1]}"}
    found = {
        path: serve(admin_keys, RequestFactory().get(path, **key), is_async=is_async)[1]
        for path in ("/registry/uploads", "/registry/checkpoints/x/adapters", "/registry/checkpoints/x/load")
    }
    assert found.pop("/registry/checkpoints/x/load") is None
    assert [caller.kind for caller in found.values()] == ["key", "key"]
    assert serve(admin_keys, RequestFactory().get("/registry/uploads"), is_async=is_async)[1] is None
    proxied = RequestFactory().get("/registry/uploads", HTTP_AUTHORIZATION="Basic YTpi")  # meant for a proxy
    assert serve(admin_keys, proxied, is_async=is_async)[1] is None
    wrong = RequestFactory().get("/registry/uploads", HTTP_X_API_KEY="blazr_wrong_key")
    assert isinstance(serve(admin_keys, wrong, is_async=is_async)[1], NotAuthenticated)
