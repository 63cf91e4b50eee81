"""The API's ASGI handler: bodies, threads, and clients that go away."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.http import Http404, HttpResponse
from django.test import RequestFactory

from blazr_site.bare_handler import BareHandler

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
    await Handler(echo)(SCOPE, client.receive, client.send)
    assert client.body == b"".join(parts)
    assert client.sent[0]["status"] == 200


async def test_a_client_that_leaves_within_its_body_gets_no_view():
    client = Client(b"half")
    client.messages[0]["more_body"] = True
    client.leave()
    await Handler(None)(SCOPE, client.receive, client.send)
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
        await Handler(echo)(SCOPE, client.receive, client.send)
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
            await Handler(view)(SCOPE, client.receive, client.send)
        assert finished == [thread.ident for thread in used]
        assert threading.current_thread() not in used
        for thread in used:
            thread.join(10)
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
    task = asyncio.create_task(Handler(view)(SCOPE, client.receive, client.send))
    await waiting.wait()
    client.leave()
    await asyncio.wait_for(task, 15)
    assert ended.is_set()
    assert client.sent == []
    assert task.cancelling() == 0


async def test_a_cancellation_from_elsewhere_passes_through():
    waiting = asyncio.Event()

    async def view(request):
        waiting.set()
        await asyncio.sleep(60)

    client = Client(b"x")
    task = asyncio.create_task(Handler(view)(SCOPE, client.receive, client.send))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_path_that_is_no_url_is_answered():
    client = Client(b"x")
    await BareHandler()({**SCOPE, "path": "/v1/nothing"}, client.receive, client.send)
    assert client.sent[0]["status"] == 404


def test_only_routes_without_parameters_are_remembered():
    handler = BareHandler()
    handler.load_middleware(is_async=True)

    def resolved(path):
        request = RequestFactory().get(path)
        assert handler.resolve_request(request) is request.resolver_match
        return request.resolver_match

    fixed, model = resolved("/v1/completions"), resolved("/v1/models/a/b")
    assert resolved("/v1/completions") is fixed
    assert (fixed.url_name, model.url_name, model.kwargs) == ("completions", "model", {"model_id": "a/b"})
    assert resolved("/v1/models/c").kwargs == {"model_id": "c"}
    assert resolved("/v1/nothing").kwargs == {"rest": "nothing"}
    with pytest.raises(Http404):
        resolved("/nowhere")
    assert set(handler._fixed_routes) == {"/v1/completions"}
