"""Static files over HTTP."""

from __future__ import annotations

import logging


async def test_a_path_out_of_the_directories_is_not_found_and_logs_no_traceback(async_client, caplog):
    with caplog.at_level(logging.INFO):
        response = await async_client.get("/static/..%2f..%2fdb.sqlite3")
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
