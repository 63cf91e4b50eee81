"""Static files over HTTP."""

from __future__ import annotations

import logging

import pytest
from django.core.signals import request_finished


@pytest.mark.parametrize("path", ["..%2f..%2fdb.sqlite3", "registry", "none.css", "a%00b"])
async def test_what_is_no_file_of_the_directories_is_not_found_and_logs_no_traceback(async_client, caplog, path):
    with caplog.at_level(logging.INFO):
        response = await async_client.get(f"/static/{path}")
    assert response.status_code == 404
    assert "Traceback" not in caplog.text and not any(record.exc_info for record in caplog.records)


async def test_a_file_is_read_whole(async_client):
    """Django warns on the console of each response that it has to read in the event loop."""
    response = await async_client.get("/static/inference/api_docs.css")
    assert not response.streaming
    assert b"{" in response.content and response.headers["Content-Type"] == "text/css"
    assert (response.headers["Cache-Control"], int(response.headers["Content-Length"])) == (
        "no-cache",
        len(response.content),
    )
    again = await async_client.get(
        "/static/inference/api_docs.css", headers={"If-Modified-Since": response.headers["Last-Modified"]}
    )
    assert again.status_code == 304


def test_the_request_ends_once(client):
    """Its end closes old connections to the database, which must not happen within a request."""
    ends = []

    def count(**_: object) -> None:
        ends.append(1)

    request_finished.connect(count)
    try:
        assert client.get("/static/inference/api_docs.css").status_code == 200
    finally:
        request_finished.disconnect(count)
    assert len(ends) == 1
