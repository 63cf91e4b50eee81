"""The bytes of stored responses that are read are limited until they have been sent."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from inference.access.api_keys import api_key_create
from inference.api.responses.reading import BYTES_READ, ReadResponse
from inference.records.stored_responses import response_store
from inference.values.principal import LOCAL
from tests.inference.api.openai.test_views_openai_client import wait_for


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    wait_for(lambda: BYTES_READ.num_held == 0)
    monkeypatch.setattr(BYTES_READ, "per_caller", 30 << 20)
    monkeypatch.setattr(BYTES_READ, "total", 40 << 20)


def store(name: str, *, text: str = "x", principal=LOCAL) -> None:
    body = {"id": name, "status": "completed", "background": False, "previous_response_id": None, "output": []}
    part = {"type": "input_text", "text": "Hi"}
    item = {"type": "message", "id": f"msg_{name}", "role": "user", "status": "completed", "content": [part]}
    response_store(body=body | {"instructions": text}, items=[item], principal=principal)


def test_a_response_is_held_until_it_is_closed():
    stack = ExitStack()
    stack.enter_context(BYTES_READ.hold("local", 10))
    response = ReadResponse({"a": 1}, stack)
    assert (response.content, BYTES_READ.num_held) == (b'{"a":1}', 10)
    for _ in range(2):
        response.close()
        assert BYTES_READ.num_held == 0


@pytest.mark.parametrize(
    ("method", "path"), [("get", ""), ("get", "/input_items"), ("post", "/cancel"), ("delete", "")]
)
def test_a_caller_who_reads_too_much_is_refused(live_url, checkpoint, method, path):
    store("resp_a")
    _, key = api_key_create(name="other")
    with BYTES_READ.hold("local", BYTES_READ.per_caller):
        refused = httpx.request(method, f"{live_url}/v1/responses/resp_a{path}", timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        other = httpx.get(f"{live_url}/v1/responses/resp_a", headers={"Authorization": f"Bearer {key}"}, timeout=60)
        assert other.status_code == 404, "another caller isn't refused"
    answer = httpx.request(method, f"{live_url}/v1/responses/resp_a{path}", timeout=60)
    assert answer.status_code == (400 if path == "/cancel" else 200)
    wait_for(lambda: BYTES_READ.num_held == 0)


def test_a_request_that_goes_on_with_too_much_is_refused(live_url, worker):
    store("resp_a", text="x" * 1000)
    body = {"model": "tiny", "input": "Hi", "previous_response_id": "resp_a"}
    for path in ("", "/input_tokens"):
        with BYTES_READ.hold("local", BYTES_READ.per_caller - 999):
            assert httpx.post(f"{live_url}/v1/responses{path}", json=body, timeout=60).status_code == 429
        assert httpx.post(f"{live_url}/v1/responses{path}", json=body, timeout=60).status_code == 200
    assert BYTES_READ.num_held == 0


def test_a_client_that_reads_slowly_holds_its_response(live_url, checkpoint):
    """Its bytes count until they are sent, or the client has left."""
    store("resp_a", text="x" * (20 << 20))
    address = urlsplit(live_url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /v1/responses/resp_a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        assert BYTES_READ.num_held > 20 << 20
        assert httpx.get(f"{live_url}/v1/responses/resp_a", timeout=60).status_code == 429
    wait_for(lambda: BYTES_READ.num_held == 0)
    assert httpx.get(f"{live_url}/v1/responses/resp_a", timeout=60).status_code == 200
