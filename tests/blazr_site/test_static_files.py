"""Static files over HTTP."""

from __future__ import annotations

import gzip
import logging

import pytest
from django.core.signals import request_finished
from django.templatetags.static import static

from blazr_site.static_files import files_version


@pytest.mark.parametrize("path", ["..%2f..%2fdb.sqlite3", "registry", "none.css", "a%00b"])
async def test_what_is_no_file_of_the_directories_is_not_found_and_logs_no_traceback(async_client, caplog, path):
    with caplog.at_level(logging.INFO):
        response = await async_client.get(f"/static/{path}")
    assert response.status_code == 404
    assert "Traceback" not in caplog.text and not any(record.exc_info for record in caplog.records)


async def test_a_file_is_read_whole(async_client):
    """Django warns on the console of each response that it has to read in the event loop."""
    response = await async_client.get("/static/inference/api_docs.js")
    assert not response.streaming
    assert b"{" in response.content and response.headers["Content-Type"] in (
        "text/javascript",
        "application/javascript",
    )
    assert (response.headers["Cache-Control"], int(response.headers["Content-Length"])) == (
        "no-cache",
        len(response.content),
    )
    again = await async_client.get(
        "/static/inference/api_docs.js", headers={"If-Modified-Since": response.headers["Last-Modified"]}
    )
    assert again.status_code == 304


def test_the_request_ends_once(client):
    """Its end closes old connections to the database, which must not happen within a request."""
    ends = []

    def count(**_: object) -> None:
        ends.append(1)

    request_finished.connect(count)
    try:
        assert client.get("/static/inference/api_docs.js").status_code == 200
    finally:
        request_finished.disconnect(count)
    assert len(ends) == 1


async def test_a_page_names_files_by_their_version_and_browsers_keep_them(async_client):
    address = static("registry/kit.js")
    assert address == f"/static/v-{files_version()}/registry/kit.js"
    response = await async_client.get(address)
    assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    old = await async_client.get("/static/v-0123456789ab/registry/kit.js")
    assert (old.content, old.headers["Cache-Control"]) == (response.content, "no-cache")
    assert (await async_client.get("/static/v-0123456789ab/../registry/kit.js")).status_code == 404


async def test_text_is_sent_compressed(async_client):
    address = static("vendor/bootstrap/bootstrap.min.css")
    plain = await async_client.get(address)
    packed = await async_client.get(address, headers={"Accept-Encoding": "br, gzip"})
    assert "Content-Encoding" not in plain.headers
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content) // 6
    assert int(packed.headers["Content-Length"]) == len(packed.content)


async def test_the_icon_is_where_browsers_look_for_it(async_client):
    response = await async_client.get("/favicon.ico")
    assert response.status_code == 200 and response.content.startswith(b"\0\0\1\0")
