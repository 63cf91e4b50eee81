"""Batches on the real server: kills of the worker, a line that breaks it, interactive requests in between."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from typing import Any

import httpx
import pytest

from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.live

WORKER = "celery -q -A blazr_site.celery worker"
KILLS = 2
NUM_TOKENS = 96
"""Of a line of the batch under kills: the batch takes some seconds."""
LONG = 600
"""Tokens of a line of a batch that doesn't end while a test looks at it: 500 lines take a minute."""


def start(
    server: LiveServer, lines: list[dict[str, Any]], headers: dict[str, str] | None = None, **members: Any
) -> str:
    content = "\n".join(json.dumps(line) for line in lines).encode()
    form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as http:
        file = http.post("/v1/files", **form).raise_for_status().json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h", **members}
        return http.post("/v1/batches", json=body).raise_for_status().json()["id"]


Headers = dict[str, str] | None


def look(server: LiveServer, batch_id: str, headers: Headers = None) -> dict[str, Any]:
    return httpx.get(f"{server.url}/v1/batches/{batch_id}", headers=headers, timeout=30).raise_for_status().json()


def content(server: LiveServer, file_id: str | None, headers: Headers = None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    url = f"{server.url}/v1/files/{file_id}/content"
    text = httpx.get(url, headers=headers, timeout=30).raise_for_status().text
    return [json.loads(line) for line in text.splitlines()]


def lines_of(count: int, **body: Any) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions",
         "body": {"model": "demo", "prompt": f"The statement {number}", "max_tokens": 24, "ignore_eos": True, **body}}
        for number in range(count)
    ]  # fmt: skip


def results(server: LiveServer) -> dict[int, str]:
    """What has been written of finished lines, by line."""
    with sqlite3.connect(server.data_dir / "db.sqlite3", timeout=20) as database:
        return dict(database.execute("select line_id, payload from inference_batchresult").fetchall())


def test_after_kills_every_line_is_answered_once_and_what_was_done_stays(server):
    """Each kill comes when some lines are done and others run; seeds make the answers those of a calm run."""
    lines = lines_of(250, max_tokens=NUM_TOKENS, temperature=0.8)
    batch_id = start(server, lines)
    before: dict[int, str] = {}
    for _ in range(KILLS):
        seen = len(before)
        wait_until(lambda seen=seen: len(results(server)) > seen, 60, "progress of the batch")
        with server.held_worker() as worker:  # what follows takes time, in which it would get through
            before = results(server)
            os.kill(worker, signal.SIGKILL)
    done = wait_until(lambda: (found := look(server, batch_id))["status"] == "completed" and found, 120, "the batch")
    after = results(server)
    assert {line_id: after[line_id] for line_id in before} == before
    assert done["request_counts"] == {"total": 250, "completed": 250, "failed": 0}
    output = content(server, done["output_file_id"])
    assert [item["custom_id"] for item in output] == [line["custom_id"] for line in lines]
    assert {item["response"]["body"]["usage"]["completion_tokens"] for item in output} == {NUM_TOKENS}
    assert done["usage"]["output_tokens"] == 250 * NUM_TOKENS
    attempts = {int(item["response"]["request_id"].rpartition("-")[2]) for item in output}
    assert 1 in attempts
    assert max(attempts) > 1  # a kill did hit running lines


def test_interactive_requests_are_answered_while_a_batch_runs_and_a_cancel_ends_it(server):
    batch_id = start(server, lines_of(500, max_tokens=LONG))
    wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] > 0, 60, "the first line")
    started = time.monotonic()
    assert server.complete(max_tokens=8).status_code == 200
    assert time.monotonic() - started < 30
    progress = look(server, batch_id)["progress"]
    assert progress["queue_position"] == 0
    assert progress["lines_per_s"] > 0
    assert progress["is_feasible"] is True
    assert httpx.post(f"{server.url}/v1/batches/{batch_id}/cancel", timeout=30).json()["status"] == "cancelling"
    ended = wait_until(lambda: (found := look(server, batch_id))["status"] == "cancelled" and found, 60, "the end")
    counts = ended["request_counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == 500
    assert len(content(server, ended["output_file_id"])) == counts["completed"]
    assert {item["error"]["code"] for item in content(server, ended["error_file_id"])} == {"batch_cancelled"}


def test_a_revoked_key_ends_its_batch_within_seconds_and_what_is_done_stays(server):
    boss = server.admin_headers
    made = (
        httpx.post(f"{server.url}/v1/keys", json={"name": "night"}, headers=boss, timeout=30).raise_for_status().json()
    )
    headers = {"Authorization": f"Bearer {made['value']}"}
    batch_id = start(server, lines_of(500, max_tokens=LONG), headers)
    wait_until(lambda: look(server, batch_id, boss)["request_counts"]["completed"] > 0, 60, "the first line")
    httpx.delete(f"{server.url}/v1/keys/{made['id']}", headers=boss, timeout=30).raise_for_status()
    ended = wait_until(lambda: (found := look(server, batch_id, boss))["status"] == "failed" and found, 60, "the end")
    assert [item["code"] for item in ended["errors"]["data"]] == ["invalid_api_key"]
    counts = ended["request_counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == 500
    assert len(content(server, ended["output_file_id"], boss)) == counts["completed"] > 0
    assert {item["error"]["code"] for item in content(server, ended["error_file_id"], boss)} == {"invalid_api_key"}
