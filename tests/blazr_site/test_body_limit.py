"""Bodies over the limit are refused: unread where their length is declared, else as soon as they are too long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from blazr_site import body_limit
from blazr_site.body_limit import BodyLimit

LIMIT = 10


class App:
    """Reads whole bodies, as Django does before a view runs, and answers 200."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.scopes: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.scopes.append(scope["type"])
        body, is_complete = b"", False
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            is_complete = not message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def call(
    app: App, *chunks: bytes, length: bytes | None = None, larger: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """What a client is sent whose body comes in ``chunks``, and which then sends nothing more."""
    headers = [] if length is None else [(b"content-length", length)]
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await BodyLimit(app, LIMIT, larger)({"type": "http", "path": "/v1/files", "headers": headers}, receive, send)
    return sent


def assert_refused(sent: list[dict[str, Any]], limit: int = LIMIT) -> None:
    start, body, end = sent
    assert start["status"] == 413
    assert (b"connection", b"close") in start["headers"]
    assert (b"content-length", b"%d" % len(body["body"])) in start["headers"]  # whole before the connection closes
    assert end == {"type": "http.response.body", "body": b""}
    assert f"more than {limit} bytes" in orjson.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize("chunks", [[b"x" * LIMIT], [b"x" * 6, b"x" * 4], [b""]])
async def test_a_body_of_the_limit_passes(chunks):
    app = App()
    (start,) = await call(app, *chunks)
    assert start["status"] == 200
    assert app.bodies == [b"".join(chunks)]


@pytest.mark.parametrize("length", [b"11", b"-1", b"1e1", b""])
async def test_a_declared_length_over_the_limit_is_refused_unread(length):
    app = App()
    assert_refused(await call(app, b"x", length=length))
    assert app.scopes == []


async def test_a_body_that_grows_over_the_limit_is_cut():
    app = App()
    assert_refused(await call(app, b"x" * 6, b"x" * 5, b"x"))
    assert app.bodies == []


async def test_the_rest_of_a_refused_body_is_dropped_for_a_moment(monkeypatch):
    monkeypatch.setattr(body_limit, "LINGER_S", 0.05)
    app = App()
    async with asyncio.timeout(10):
        assert_refused(await call(app, b"x", b"", length=b"11"))  # the whole body comes
        waits_for_ever = asyncio.Event()
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return await waits_for_ever.wait()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/", "headers": [(b"content-length", b"11")]}
        await BodyLimit(app, LIMIT)(scope, receive, send)
    assert_refused(sent)
    assert app.bodies == []


async def test_a_client_that_stops_within_its_body_is_cut(monkeypatch):
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.05)
    app = App()
    received: list[str] = []

    async def receive() -> dict[str, Any]:
        if not received:
            received.append("first")
            return {"type": "http.request", "body": b"x", "more_body": True}
        return await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError(message)

    async with asyncio.timeout(10):
        await BodyLimit(app, LIMIT)({"type": "http", "path": "/", "headers": []}, receive, send)
    assert (app.scopes, app.bodies) == (["http"], [])


async def test_only_callers_who_can_call_may_send_large_bodies(settings):
    """Strangers get the ordinary limit: the check comes before the disk."""
    app = App()
    (start,) = await call(app, b"x" * 50, length=b"50", larger={"/v1/files": 100})
    assert (start["status"], app.bodies) == (200, [b"x" * 50])
    assert_refused(await call(app, b"x" * 101, larger={"/v1/files": 100}), limit=100)
    settings.BLAZR_API_KEY_REQUIRED = True
    assert_refused(await call(app, b"x" * 50, length=b"50", larger={"/v1/files": 100}))
    assert len(app.bodies) == 1


async def test_other_connections_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    await BodyLimit(app, LIMIT)({"type": "websocket"}, None, None)
    assert seen == ["websocket"]
