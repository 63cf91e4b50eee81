"""The OpenAPI document and its page, as they are served: built once, by a process beside the server."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from blazr_site import docs_views
from blazr_site.api_docs import openapi_document, operations


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_views, "_building", None)


@pytest.mark.parametrize("path", ["/schema", "/openapi.json"])
async def test_the_document_is_served_at_both_paths(async_client, path):
    response = await async_client.get(path)
    assert (response.status_code, response["Cache-Control"]) == (200, "public, max-age=60")
    assert response["Content-Type"] == "application/json"
    assert response.json() == openapi_document()


async def test_the_page_names_every_operation_and_loads_nothing_from_elsewhere(async_client):
    response = await async_client.get("/docs")
    page = response.content.decode()
    assert response.status_code == 200
    policy = response["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';") and "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|(src|href)=\"(https?:)?//", page)
    assert (await async_client.get("/static/inference/api_docs.js")).status_code == 200
    for operation in operations(openapi_document()):
        assert f'id="{operation.anchor}"' in page, operation.path


@pytest.mark.usefixtures("not_built")
async def test_requests_that_come_together_start_one_process_and_outlive_one_that_leaves(monkeypatch):
    started = []
    start = asyncio.create_subprocess_exec

    async def counted(*command, **options):
        started.append(command)
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    leaving, *staying = [asyncio.create_task(docs_views.docs()) for _ in range(4)]
    await asyncio.sleep(0.1)
    leaving.cancel()
    first, *others = await asyncio.gather(*staying)
    assert all(made is first for made in [*others, await docs_views.docs()])
    assert len(started) == 1


@pytest.mark.usefixtures("not_built")
async def test_a_build_that_failed_is_told_and_tried_again(async_client, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        response = await async_client.get("/schema")
    assert response.status_code == 500
    assert "the documents of the API could not be built" in response.json()["error"]["message"]
    assert (await async_client.get("/schema")).status_code == 200
