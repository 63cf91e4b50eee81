"""The API's ASGI handler: bodies, threads, and clients that go away."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpResponse

from blazr_site.bare_handler import BareHandler, read_to_disk
from blazr_site.request_thread import request_thread
from blazr_site.routes import route_or_none
from inference.errors import StorageFull
from models_registry.storage import uploads_dir

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}


class Handler(BareHandler):
    """With a view of the test's in place of the site's."""

    def __init__(self, view):
        self.view = view

    async def run_get_response(self, request):
        return await self.view(request)


async def serve(handler, client, **scope):
    async with request_thread():
        path = scope.get("path", SCOPE["path"])
        await handler({**SCOPE, "route": route_or_none(path), **scope}, client.receive, client.send)


class Client:
    """One request; ``leave`` closes its connection."""

    def __init__(self, *parts: bytes):
        self.messages = [
            {"type": "http.request", "body": part, "more_body": number < len(parts)}
            for number, part in enumerate(parts, start=1)
        ]
        self.sent: list[dict] = []
        self._gone = asyncio.Event()

    def leave(self):
        self._gone.set()

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


async def echo(request):
    return HttpResponse(request.read())


@pytest.mark.parametrize("parts", [(b"",), (b"whole",), (b"in ", b"three ", b"parts"), (b"x" * 3_000_000, b"y")])
async def test_a_body_arrives_whole(parts):
    client = Client(*parts)
    await serve(Handler(echo), client)
    assert client.body == b"".join(parts)
    assert client.sent[0]["status"] == 200


@pytest.mark.parametrize("path", ["/v1/files", "/v1/states/a/content", "/api/blobs/sha256:0"])
async def test_a_file_is_received_in_the_data_directory(monkeypatch, path):
    """Not in the system's directory for temporary files, which other users share."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    client, before = Client(b"x" * 3_000_000, b"y"), set(uploads_dir().iterdir())
    await serve(Handler(echo), client, path=path)
    assert client.body == b"x" * 3_000_000 + b"y"
    assert set(uploads_dir().iterdir()) == before  # it has no name there


async def test_a_client_that_leaves_within_its_body_gets_no_view():
    client = Client(b"half")
    client.messages[0]["more_body"] = True
    client.leave()
    await serve(Handler(None), client)
    assert client.sent == []


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_opened_a_connection_is_finished_in_its_thread_which_ends():
    finished = []

    def note(**kwargs):
        finished.append(threading.get_ident())

    from django.core.signals import request_finished

    request_finished.connect(note)
    try:
        client = Client(b"x")
        await serve(Handler(echo), client)
        assert finished.pop() == threading.get_ident()

        used = []

        def connect():
            connection.close()
            connection.connect()
            return threading.current_thread()

        async def view(request):
            used.append(await sync_to_async(connect)())
            return HttpResponse()

        for _ in range(2):
            client = Client(b"x")
            await serve(Handler(view), client)
        assert finished == [thread.ident for thread in used]
        assert threading.current_thread() not in used
        for thread in used:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        request_finished.disconnect(note)


@pytest.mark.parametrize("thread", [False, True])
async def test_a_client_that_leaves_cancels_the_view(thread):
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def view(request):
        if thread:
            await sync_to_async(threading.get_ident)()
        waiting.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    client = Client(b"x")
    task = asyncio.create_task(serve(Handler(view), client))
    await waiting.wait()
    client.leave()
    await asyncio.wait_for(task, 50)
    assert ended.is_set()
    assert client.sent == []
    assert task.cancelling() == 0


async def test_a_cancellation_from_elsewhere_passes_through():
    waiting = asyncio.Event()

    async def view(request):
        waiting.set()
        await asyncio.sleep(60)

    client = Client(b"x")
    task = asyncio.create_task(serve(Handler(view), client))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_path_that_is_no_url_is_answered():
    client = Client(b"x")
    await serve(BareHandler(), client, path="/v1/nothing")
    assert client.sent[0]["status"] == 404


async def test_the_length_of_a_chunked_body_is_known():
    lengths = []

    async def view(request):
        lengths.append(request.META["CONTENT_LENGTH"])
        return await echo(request)

    client = Client(b"ab", b"c")
    await serve(Handler(view), client)
    assert (lengths, client.body) == (["3"], b"abc")


@pytest.mark.parametrize(("status", "body", "length"), [(429, b"full", b"4"), (200, b"", b"0"), (204, b"", None)])
async def test_a_response_names_its_length_so_that_it_is_not_chunked(status, body, length):
    async def view(request):
        return HttpResponse(body, status=status)

    client = Client(b"x")
    await serve(Handler(view), client)
    assert dict(client.sent[0]["headers"]).get(b"Content-Length") == length


async def test_an_unexpected_error_is_an_error_object_and_says_nothing_of_the_inside(monkeypatch):
    async def broken(request):
        raise RuntimeError("the secret")

    found = type("Match", (), {"func": staticmethod(broken), "args": (), "kwargs": {}})
    monkeypatch.setattr(BareHandler, "resolve_request", lambda handler, request: found)
    client = Client(b"x")
    await serve(BareHandler(), client)
    assert client.sent[0]["status"] == 500
    assert b"internal_error" in client.body
    assert b"secret" not in client.body


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_full_disk_is_named_whether_the_body_fills_a_buffer_or_not(monkeypatch, size):
    files = []

    def full_file(dir):
        files.append(Path("/dev/full").open("w+b"))  # noqa: SIM115 - what is tried closes it
        return files[0]

    monkeypatch.setattr(tempfile, "TemporaryFile", full_file)

    async def receive():
        return {"type": "http.request", "body": bytes(size)}

    with pytest.raises(StorageFull, match="no room for this body"):
        await read_to_disk(receive)
    assert files[0].closed
