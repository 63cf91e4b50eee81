"""Streams over time: heartbeats, readers that stall, requests that take too long, servers that stop."""

from __future__ import annotations

import time

import httpx
import pytest

from inference.api import event_stream as sse
from inference.records import metrics
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.sent_parts import SentParts
from tests.inference.api.slow_reader import slow_chat

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_silent_stream_has_heartbeats(live_url, worker, monkeypatch):
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.1)
    sent = SentParts(monkeypatch)

    def script(reply: Reply):
        yield reply.start()
        wait_for(lambda: sent.num_heartbeats >= 3)
        yield reply.delta("late", finish_reason="stop")
        yield reply.done()

    worker.script = script
    raw = httpx.post(f"{live_url}/v1/chat/completions", json=BODY, timeout=60).text
    assert raw.count(": keep-alive\n\n") >= 3
    assert all(seconds > 0.09 for seconds in sent.silences_s())
    assert raw.endswith("data: [DONE]\n\n")
    assert '"content":"late"' in raw


def test_a_reader_that_stalls_is_cut_and_its_slot_freed(live_url, worker, monkeypatch):
    monkeypatch.setattr(sse, "STALL_S", 0.5)
    sent = SentParts(monkeypatch)

    def script(reply: Reply):
        yield reply.start()
        while not reply.cancelled.is_set():
            if not sent.writers or sent.writers[-1]._num_bytes < 200_000:  # below the limit of what may wait
                yield reply.delta("x" * 20_000)
            time.sleep(0.02)

    worker.script = script
    cancelled = metrics.REQUESTS.labels("tiny", "chat", "cancelled")
    before = cancelled._value.get()
    with slow_chat(live_url, BODY):
        wait_for(lambda: len(worker.cancelled) == 1)
    wait_for(lambda: cancelled._value.get() > before)
    assert cancelled._value.get() == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_never_starts_ends_with_503(live_url, worker, settings, stream):
    settings.BLAZR_REQUEST_TIMEOUT_S = 1
    worker.script = lambda reply: iter(())
    response = httpx.post(f"{live_url}/v1/chat/completions", json={**BODY, "stream": stream}, timeout=60)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "model_loading"
    assert int(response.headers["retry-after"]) > 0
    wait_for(lambda: len(worker.cancelled) == 1)


def test_a_stream_that_takes_too_long_ends_with_an_error(live_url, worker, settings, expiry_after_start):
    settings.BLAZR_REQUEST_TIMEOUT_S = 1

    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("x")
        reply.cancelled.wait(60)

    worker.script = script
    raw = httpx.post(f"{live_url}/v1/chat/completions", json=BODY, timeout=60).text
    assert "did not end within 1 s" in raw
    assert raw.endswith("data: [DONE]\n\n")
    wait_for(lambda: len(worker.cancelled) == 1)
