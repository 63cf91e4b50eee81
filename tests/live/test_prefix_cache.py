"""The prefix cache over HTTP: true usage, metrics, and a system prompt that outlives the server."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.live.conftest import DEVICE, LiveServer, wait_until

pytestmark = pytest.mark.live

SYSTEM = "You are a careful assistant who proves statements. " * 6


def details(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    return {"prompt_tokens": usage["prompt_tokens"], **usage["prompt_tokens_details"]}


def metric(server: LiveServer, name: str, **labels: str) -> float:
    for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines():
        if re.match(rf"{name}[{{ ]", line) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_usage_and_metrics_are_true_and_a_restart_keeps_the_prompt(django_db_setup, tmp_path):
    options = (*DEVICE, "--cache-dir", str(tmp_path / "prefixes"))
    server = LiveServer(tmp_path / "data", *options)
    try:
        server.wait_ready()
        cold = server.complete(prompt=SYSTEM + "One.")
        found = details(cold)
        assert found["cached_tokens"] == 0 and found["cache_miss_reason"] == "cold"
        again = server.complete(prompt=SYSTEM + "One.")
        found = details(again)
        assert found["cached_tokens"] == found["prompt_tokens"] - 1 and "cache_miss_reason" not in found
        assert again.json()["choices"][0]["text"] == cold.json()["choices"][0]["text"]
        # Another salt is another cache.
        assert details(server.complete(prompt=SYSTEM + "One.", cache_salt="x"))["cached_tokens"] == 0
        # The demo has recurrent layers, and a short prompt has no snapshot but at its end: where the second one
        # leaves it, the third one finds it.
        assert details(server.complete(prompt=SYSTEM + "Two."))["cache_miss_reason"] == "no_snapshot"
        _, chunks = server.stream(prompt=SYSTEM + "Three.", max_tokens=4, stream_options={"include_usage": True})
        streamed = chunks[-1]["usage"]["prompt_tokens_details"]
        assert streamed["cached_tokens"] >= found["prompt_tokens"] - 8
        wait_until(lambda: metric(server, "blazr_prefix_cache_hits_total", model="demo") == 2, what="the metric")
        assert metric(server, "blazr_prefix_cache_misses_total", model="demo", reason="cold") == 2
        num_cached = found["cached_tokens"] + streamed["cached_tokens"]
        name = "blazr_prompt_tokens_cached_total"  # which is counted when a stream has been sent
        wait_until(lambda: metric(server, name, model="demo") == num_cached, what=f"{num_cached} cached tokens")
    finally:
        server.stop()
    assert not any(b"careful" in path.read_bytes() for path in (tmp_path / "prefixes").rglob("*") if path.is_file())
    server = LiveServer(tmp_path / "data", *options)
    try:
        server.wait_ready()
        found = details(server.complete(prompt=SYSTEM + "One."))
        assert found["cached_tokens"] == found["prompt_tokens"] - 1
        wait_until(lambda: metric(server, "blazr_prefix_cache_disk_tokens_total", model="demo") > 0, what="the metric")
    finally:
        server.stop()


@pytest.mark.fault(
    "F66",
    provoked="the same long prompt under one key, under another, and without a key under a salt that names the first",
    holds="no cached tokens for the others; each finds its own prompt again",
)
def test_keys_are_kept_apart_whatever_salt_is_asked_for(server):
    """A prompt of one key is as good as new for another one, and for a caller whose salt is the first one's name."""
    code = "from inference.access.api_keys import api_key_create as make"
    code += "; row, key = make(name='a'); print(row.pk, key, make(name='b')[1])"
    number, first_key, second_key = server.manage(code).split()

    def cached(key: str | None, **body: str) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        body = {"model": "demo", "prompt": f"Apart. {SYSTEM}", "max_tokens": 2, **body}
        return details(httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60))[
            "cached_tokens"
        ]

    assert [cached(first_key) > 0 for _ in range(2)] == [False, True]
    assert [cached(second_key) > 0 for _ in range(2)] == [False, True]
    assert [cached(None, cache_salt=salt) for salt in (f"key:{number}", f"key:{number}\n")] == [0, 0]
    assert [cached(None) > 0 for _ in range(2)] == [False, True]


def test_off(plain_server):
    for _ in range(2):
        assert details(plain_server.complete(prompt=SYSTEM)) | {"prompt_tokens": 0} == {
            "prompt_tokens": 0, "cached_tokens": 0, "cache_miss_reason": "disabled",
        }  # fmt: skip


def test_marked_messages_are_kept_and_read_again(server):
    make = "from inference.access.api_keys import api_key_create as make; print(make(name='marked')[1])"
    headers = {"Authorization": f"Bearer {server.manage(make).strip()}"}  # nothing of it is in the cache
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = {"role": "system", "content": [{"type": "text", "text": SYSTEM, **mark}]}

    def post(path: str, body: dict) -> httpx.Response:
        return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)

    def chat(question: str) -> dict:
        messages = [system, {"role": "user", "content": question}]
        return details(post("/v1/chat/completions", {"model": "demo", "max_tokens": 2, "messages": messages}))

    first = chat("What is a list?")
    (kept,) = first["kept_prefixes"]
    assert first["cached_tokens"] == 0 and kept["seconds"] == 3600
    assert 0 < kept["tokens"] < first["prompt_tokens"]
    # Without the mark the second question would have found nothing: it parts before the first snapshot.
    second = chat("Name a tuple.")
    assert second["cached_tokens"] >= kept["tokens"] and second["kept_prefixes"] == [kept]
    body = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    body["system"] = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    usage = post("/v1/messages", body).json()["usage"]
    assert usage["cache_read_input_tokens"] >= kept["tokens"]
    assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == 0
