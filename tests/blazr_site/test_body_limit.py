"""Bodies of unknown callers, and bodies beyond a limit, are refused: unread where the headers suffice, else while they
arrive."""

from __future__ import annotations

import asyncio
import errno
import json
import tempfile
from typing import Any

import orjson
import pytest
from asgiref.sync import sync_to_async

from blazr_site import body_limit
from blazr_site.bare_handler import BareHandler
from blazr_site.body_budget import ANONYMOUS_BYTES, MAX_ANONYMOUS_BODY_BYTES, BodyBudget
from blazr_site.body_limit import BodyLimit
from blazr_site.routes import SMALL_BODY_BYTES, route_or_none
from inference.access.api_keys import api_key_create

LIMIT = 10


class App:
    """Reads whole bodies, as Django does before a view runs, and answers 200."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.scopes: list[str] = []
        self.may_respond = asyncio.Event()
        self.may_respond.set()

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
        await self.may_respond.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Client:
    """A client whose body comes in ``chunks``; then it sends nothing more, and waits."""

    http_version = "1.1"

    def __init__(self, *chunks: bytes, length: bytes | None = None, is_whole: bool = True, **headers: str) -> None:
        self.headers = [(b"content-length", length) if length is not None else (b"transfer-encoding", b"chunked")]
        self.headers += [] if "host" in headers else [(b"host", b"localhost")]
        self.headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self._waiting = [
            {"type": "http.request", "body": chunk, "more_body": number < len(chunks) or not is_whole}
            for number, chunk in enumerate(chunks, 1)
        ]
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return self._waiting.pop(0) if self._waiting else await asyncio.Event().wait()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def call(self, limit: BodyLimit, path: str = "/v1/completions") -> list[dict[str, Any]]:
        scope = {
            "type": "http",
            "http_version": self.http_version,
            "client": ("127.0.0.1", 50000),
            "method": "POST",
            "path": path,
            "route": route_or_none(path),
            "headers": self.headers,
        }
        async with asyncio.timeout(60):
            await limit(scope, self.receive, self.send)
        return self.sent

    @property
    def num_unread(self) -> int:
        return len(self._waiting)


def budget(total: int = 1 << 30, caller: int = 1 << 30) -> BodyBudget:
    return BodyBudget(total_bytes=total, caller_bytes=caller)


def limited(app: App, max_bytes: int = LIMIT, held: BodyBudget | None = None) -> BodyLimit:
    return BodyLimit(app, held or budget(), max_bytes=max_bytes)


def assert_refused(sent: list[dict[str, Any]], status: int = 413) -> Any:
    """What came is an error that is whole before the connection closes; its body."""
    start, body, end = sent
    assert start["status"] == status
    assert (b"connection", b"close") in start["headers"]
    assert (b"content-length", b"%d" % len(body["body"])) in start["headers"]
    assert end == {"type": "http.response.body", "body": b""}
    return orjson.loads(body["body"])


def assert_too_large(sent: list[dict[str, Any]], limit: int = LIMIT) -> None:
    assert f"more than {limit} bytes" in assert_refused(sent)["error"]["message"]


@pytest.fixture(autouse=True)
def short_linger(monkeypatch):
    monkeypatch.setattr(body_limit, "LINGER_S", 0.02)


# --- sizes


@pytest.mark.parametrize("chunks", [[b"x" * LIMIT], [b"x" * 6, b"x" * 4], [b""]])
async def test_a_body_of_the_limit_passes(chunks):
    app = App()
    assert (await Client(*chunks).call(limited(app)))[0]["status"] == 200
    assert app.bodies == [b"".join(chunks)]


@pytest.mark.parametrize("length", [b"11", b"-1", b"1e1", b"", b"9" * 5000])
async def test_a_declared_length_over_the_limit_is_refused_unread(length):
    app = App()
    assert_too_large(await Client(b"x", length=length).call(limited(app)))
    assert app.scopes == []


async def test_a_body_that_grows_over_the_limit_is_cut():
    app = App()
    assert_too_large(await Client(b"x" * 6, b"x" * 5, b"x").call(limited(app)))
    assert app.bodies == []


async def test_chunks_are_counted_however_many_they_are():
    """CVE-2025-23310: 5,000 chunks of a byte."""
    app = App()
    assert (await Client(*[b"x"] * 5000).call(limited(app, 5000)))[0]["status"] == 200
    assert app.bodies == [b"x" * 5000]
    assert_too_large(await Client(*[b"x"] * 5001).call(limited(app, 5000)), 5000)
    assert len(app.bodies) == 1


async def test_the_rest_of_a_refused_body_is_dropped_for_a_moment():
    app = App()
    whole, silent = Client(b"x", b"", length=b"11"), Client(length=b"11")
    assert_too_large(await whole.call(limited(app)))
    assert whole.num_unread == 0
    assert_too_large(await silent.call(limited(app)))
    assert app.bodies == []


async def test_each_route_has_a_limit_of_its_own(settings):
    settings.BLAZR_MAX_FILE_BYTES = 3 << 20
    limit = limited(App(), 2 << 20)
    for path, most in (
        ("/v1/chat/completions", 2 << 20),
        ("/api/jobs", 2 << 20),
        ("/v1/batches", SMALL_BODY_BYTES),
        ("/v1/keys", SMALL_BODY_BYTES),
        ("/login/", SMALL_BODY_BYTES),
        ("/nowhere", SMALL_BODY_BYTES),
        ("/v1/files", (3 << 20) + (1 << 16)),
        (
            "/registry/uploads/3f2504e0-4f89-11d3-9a0c-0305e82c3301/files/0",
            (2 << 20) + (1 << 16),
        ),
    ):
        assert_too_large(await Client(length=b"%d" % (most + 1)).call(limit, path), most)
        assert (await Client(b"x", length=b"%d" % most).call(limit, path))[0]["status"] == 200


async def test_errors_have_the_shape_of_the_routes_api():
    limit = limited(App())
    for path, message in (
        ("/api/generate", lambda body: body["error"]),
        ("/v1/messages", lambda body: body["type"] == "error" and body["error"]["message"]),
        ("/nowhere", lambda body: body["error"]["message"]),
    ):
        assert "more than" in message(assert_refused(await Client(length=b"9999999").call(limit, path)))


# --- callers


async def test_without_a_key_no_body_is_read(settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    app, held = App(), budget()
    for headers in ({}, {"authorization": "Bearer sk-wrong"}, {"x_api_key": "wrong"}):
        for path in ("/v1/completions", "/v1/files", "/v1/messages", "/api/generate", "/api/jobs"):
            client = Client(b"x", b"x", length=b"2", is_whole=False, **headers)
            assert_refused(await client.call(limited(app, held=held), path), 401)
    assert (app.scopes, held.held_bytes) == ([], 0)


@pytest.mark.django_db(transaction=True)
async def test_with_a_key_the_body_is_read(settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    _, key = await sync_to_async(api_key_create)(name="ci")
    for headers in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}):
        app = App()
        sent = await Client(b"abc", **headers).call(limited(app))
        assert (sent[0]["status"], app.bodies) == (200, [b"abc"])


async def test_strangers_together_hold_little(settings):
    """The forms of pages are open to everybody, so eight strangers could send the bodies of eight callers."""
    settings.BLAZR_API_KEY_REQUIRED = True
    app, held = App(), budget()
    limit = limited(app, 16 << 20, held)
    too_large = Client(length=b"%d" % (MAX_ANONYMOUS_BODY_BYTES + 1))
    assert_too_large(await too_large.call(limit, "/login/"), MAX_ANONYMOUS_BODY_BYTES)
    app.may_respond.clear()
    clients = [Client(b"x" * MAX_ANONYMOUS_BODY_BYTES) for _ in range(20)]
    tasks = [asyncio.create_task(client.call(limit, "/login/")) for client in clients]
    while len(app.bodies) + sum(bool(client.sent) for client in clients) < 20:
        await asyncio.sleep(0.01)
    assert held.held_bytes == ANONYMOUS_BYTES
    assert sum(map(len, app.bodies)) == ANONYMOUS_BYTES
    app.may_respond.set()
    statuses = [(await task)[0]["status"] for task in tasks]
    assert sorted(statuses) == [200] * 8 + [429] * 12
    assert held.held_bytes == 0


# --- the budget


async def test_bodies_count_until_their_response_begins():
    app, held = App(), budget(caller=15)
    limit = limited(app, held=held)
    app.may_respond.clear()
    first = asyncio.create_task(Client(b"x" * 10).call(limit))
    while not app.bodies:
        await asyncio.sleep(0)
    declared = await Client(b"x" * 6, length=b"6").call(limit)
    assert "caller" in assert_refused(declared, 429)["error"]["message"]
    assert any(name == b"retry-after" for name, _ in declared[0]["headers"])
    assert_refused(await Client(b"xxx", b"xxx").call(limit), 429)
    assert held.held_bytes == 10
    app.may_respond.set()
    await first
    assert held.held_bytes == 0
    assert (await Client(b"x" * 6).call(limit))[0]["status"] == 200


async def test_all_callers_together_have_a_limit():
    held = budget(total=15)
    held.hold("key:1", 10)
    sent = await Client(b"x" * 6).call(limited(App(), held=held))
    assert assert_refused(sent, 503)["error"]["type"] == "server_overloaded"


async def test_a_file_counts_what_django_keeps_in_memory(settings):
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 100
    app, held = App(), budget()
    app.may_respond.clear()
    task = asyncio.create_task(Client(b"x" * 80, b"x" * 80).call(limited(app, held=held), "/v1/files"))
    while not app.bodies:
        await asyncio.sleep(0)
    assert held.held_bytes == 100
    app.may_respond.set()
    await task
    assert held.held_bytes == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files"])
async def test_a_disk_that_is_full_under_a_body_is_an_error_in_the_api_s_shape(settings, monkeypatch, path):
    """Large bodies are kept in a temporary file; the reply used to be a text without a reason."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 4

    class Full(tempfile.SpooledTemporaryFile):
        def write(self, piece):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Full)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    start, body = await Client(b"x" * 4, b"x" * 4).call(limited(BareHandler()), path)
    assert start["status"] == 507 and not body["more_body"]
    assert "has no room for this body" in json.loads(body["body"])["error"]["message"]


async def test_open_requests_have_a_limit(monkeypatch):
    monkeypatch.setattr(body_limit, "MAX_OPEN_REQUESTS", 1)
    app, held = App(), budget()
    app.may_respond.clear()
    first = asyncio.create_task(Client(b"x").call(limited(app, held=held)))
    while not app.bodies:
        await asyncio.sleep(0)
    sent = await Client(b"x").call(limited(app, held=held), "/api/generate")
    assert "1 requests are open" in assert_refused(sent, 503)["error"]
    app.may_respond.set()
    assert (await first)[0]["status"] == 200


# --- time


async def test_a_client_that_stops_within_its_body_is_cut_and_told(monkeypatch):
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.05)
    app = App()
    sent = await Client(b"x", is_whole=False).call(limited(app))
    assert "too slowly" in assert_refused(sent, 408)["error"]["message"]
    assert (app.scopes, app.bodies) == (["http"], [])


async def test_a_client_that_never_pauses_but_is_slow_is_cut_too(monkeypatch):
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.1)

    class Slow(Client):
        async def receive(self):
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"x", "more_body": True}

    slow = Slow()
    assert_refused(await slow.call(limited(App(), 1 << 20)), 408)


async def test_a_large_body_has_the_time_of_its_bytes(monkeypatch):
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(body_limit, "MIN_BYTES_PER_S", 1 << 10)

    class Steady(Client):
        async def receive(self):
            if len(self._waiting) == 1:  # the first ones come without a turn of the loop
                await asyncio.sleep(0.15)
            return await super().receive()

    sent = await Steady(b"x" * (64 << 10), b"x").call(limited(App(), 1 << 20))
    assert sent[0]["status"] == 200


# --- connections without a body


@pytest.mark.parametrize("num", [0, 2])
async def test_http_1_1_needs_one_host_header(num):
    """RFC 9112, section 3.2; caches and proxies may read another one of two than this server."""
    app, client = App(), Client(b"{}", length=b"2")
    client.headers = [item for item in client.headers if item[0] != b"host"] + [(b"host", b"localhost")] * num
    assert "Host header" in assert_refused(await client.call(limited(app)), 400)["error"]["message"]
    assert not app.bodies
    old = Client(b"{}", length=b"2")
    old.http_version, old.headers = "1.0", client.headers
    assert (await old.call(limited(app)))[0]["status"] == 200


async def test_other_connections_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    limit = BodyLimit(app, budget(), max_bytes=LIMIT)
    await limit({"type": "websocket"}, None, None)
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/v1/models", "route": None}
    scope["headers"] = [(b"host", b"a")]
    await limit(scope, None, None)
    assert seen == ["websocket", "http"]
