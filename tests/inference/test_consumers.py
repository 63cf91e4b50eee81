"""WebSocket /v1/stream with a real client against the live server."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import Any

import orjson
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as websockets_connect

from inference.access.api_keys import api_key_create
from inference.errors import GenerationFailed, PromptTooLong
from inference.transport.held_messages import take_messages
from tests.inference.api import scripted_worker
from tests.inference.api.openai.test_views_openai_client import endless, wait_for
from tests.inference.api.scripted_worker import Reply

connect = functools.partial(websockets_connect, open_timeout=60, close_timeout=60)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def ws_url(live_url, worker) -> str:
    return live_url.replace("http://", "ws://") + "/v1/stream"


@pytest.fixture
def socket(ws_url):
    with connect(ws_url) as found:
        yield found


def send(socket: ClientConnection, **frame: Any) -> None:
    socket.send(orjson.dumps(frame))


def receive(socket: ClientConnection) -> dict[str, Any]:
    return orjson.loads(socket.recv(timeout=60))


def receive_until_end(socket: ClientConnection, name: str) -> list[dict[str, Any]]:
    frames = []
    while True:
        frame = receive(socket)
        if frame["id"] == name:
            frames.append(frame)
            if frame["type"] in ("done", "error", "cancelled"):
                return frames


def test_a_chat_comes_in_the_http_stream_s_chunks(socket):
    send(socket, type="chat", id="a", request={**CHAT, "stream_options": {"include_usage": True}})
    frames = receive_until_end(socket, "a")
    assert [frame["type"] for frame in frames] == ["accepted", *["chunk"] * 5, "done"]
    assert frames[0]["request_id"].startswith("chatcmpl-")
    assert frames[1]["chunk"]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(frame["chunk"]["choices"][0]["delta"].get("content", "") for frame in frames[2:5])
    assert text == "Hello, world"
    assert frames[5]["chunk"]["usage"]["completion_tokens"] == 2
    assert frames[6]["usage"]["total_tokens"] == 7
    assert 0 <= frames[6]["ttft_s"] <= frames[6]["duration_s"]


def test_several_requests_share_a_connection(socket, worker):
    def script(reply: Reply):
        name = reply.message["prompt"]["text"]
        yield reply.start()
        for number in range(5):
            time.sleep(0.01)
            yield reply.delta(f"{name}{number}", finish_reason="stop" if number == 4 else None)
        yield reply.done()

    worker.script = script
    for name in "abc":
        send(socket, type="completion", id=name, request={"model": "tiny", "prompt": name})
    texts: dict[str, str] = dict.fromkeys("abc", "")
    open_ids = set("abc")
    while open_ids:
        frame = receive(socket)
        if frame["type"] == "chunk":
            texts[frame["id"]] += frame["chunk"]["choices"][0]["text"]
        elif frame["type"] == "done":
            open_ids.remove(frame["id"])
    assert texts == {name: "".join(f"{name}{number}" for number in range(5)) for name in "abc"}


def test_cancel_stops_the_worker(socket, worker):
    worker.script = endless
    send(socket, type="chat", id="a", request=CHAT)
    assert receive(socket)["type"] == "accepted"
    assert receive(socket)["type"] == "chunk"
    send(socket, type="cancel", id="a")
    assert receive_until_end(socket, "a")[-1] == {"type": "cancelled", "id": "a"}
    wait_for(lambda: worker.cancelled == [worker.messages[-1]["request_id"]])
    send(socket, type="cancel", id="a")  # too late is no error
    send(socket, type="ping")
    assert receive(socket) == {"type": "pong"}


def test_closing_the_connection_cancels_everything(ws_url, worker):
    worker.script = endless
    with connect(ws_url) as socket:
        for name in "ab":
            send(socket, type="chat", id=name, request=CHAT)
        receive(socket)
        wait_for(lambda: len(worker.messages) == 2)
    wait_for(lambda: len(worker.cancelled) == 2)


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ({"type": "sing"}, "type"),
        ({}, "type"),
        ({"type": "chat", "id": 7}, "id"),
        ({"type": "chat", "id": "x" * 65}, "id"),
        ({"type": "chat", "id": "a"}, "request"),
        ({"type": "chat", "id": "a", "request": [1]}, "request"),
        ({"type": "chat", "id": "a", "request": {**CHAT, "stream": False}}, "stream"),
        ({"type": "chat", "id": "a", "request": {**CHAT, "temperature": 9}}, "temperature"),
        ({"type": "chat", "id": "a", "request": {**CHAT, "frobnicate": 9}}, "frobnicate"),
        ({"type": "chat", "colour": "red"}, "colour"),
        ({"type": "cancel"}, "id"),
    ],
)
def test_frames_that_are_wrong(socket, frame, param):
    socket.send(orjson.dumps(frame))
    answer = receive(socket)
    assert (answer["type"], answer["status"], answer["error"]["param"]) == ("error", 400, param)
    send(socket, type="ping")
    assert receive(socket) == {"type": "pong"}


A_PICKLE = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."


@pytest.mark.parametrize("raw", ["", "{", "[]", "null", '{"type": NaN}', "[" * 5000, A_PICKLE])
def test_frames_that_are_no_json_object(socket, raw):
    """A pickle among them: CVE-2026-26220."""
    socket.send(raw)
    answer = receive(socket)
    assert (answer["type"], answer["id"], answer["status"]) == ("error", None, 400)


def test_frames_with_too_many_values_are_refused(socket):
    socket.send(b'{"type": "chat", "request": {"messages": [' + b"[]," * (1 << 19) + b"[]]}}")
    answer = receive(socket)
    assert (answer["status"], answer["error"]["code"]) == (413, "request_too_large")
    large = {"type": "chat", "id": "a", "request": {**CHAT, "stop": ["x"] * 50_000}}
    socket.send(orjson.dumps(large))
    assert receive(socket)["error"]["param"] == "stop"


def test_errors_before_and_within_an_answer(socket, worker):
    worker.script = lambda reply: iter([reply.error(PromptTooLong("too long", param="messages"))])
    send(socket, type="chat", id="a", request=CHAT)
    (frame,) = receive_until_end(socket, "a")
    assert (frame["status"], frame["error"]["code"]) == (400, "context_length_exceeded")

    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("broken"))

    worker.script = script
    send(socket, type="chat", id="a", request=CHAT)  # the id is free again
    frames = receive_until_end(socket, "a")
    assert [frame["type"] for frame in frames] == ["accepted", "chunk", "chunk", "error"]
    assert frames[-1]["status"] == 500
    send(socket, type="chat", id="a", request={**CHAT, "model": "missing"})
    assert receive(socket)["status"] == 404


def test_an_id_that_runs_is_taken(socket, worker):
    worker.script = endless
    send(socket, type="chat", id="a", request=CHAT)
    receive(socket)
    send(socket, type="chat", id="a", request=CHAT)
    while True:
        frame = receive(socket)
        if frame["type"] == "error":
            break
    assert frame["error"]["param"] == "id"
    assert len(worker.messages) == 1


def test_callers_without_a_key_are_closed_when_one_is_needed(ws_url, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    with connect(ws_url) as socket:
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        assert socket.close_code == 4401
    _, key = api_key_create(name="ci")
    with connect(ws_url, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
        send(socket, type="chat", id="a", request=CHAT)
        assert receive_until_end(socket, "a")[-1]["type"] == "done"


def test_a_staff_session_will_do(ws_url, settings, admin_user, django_user_model):
    from django.test import Client

    settings.BLAZR_API_KEY_REQUIRED = True

    def cookie(user: Any) -> dict[str, str]:
        browser = Client()
        browser.force_login(user)
        return {"Cookie": "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items())}

    with connect(ws_url, additional_headers=cookie(admin_user)) as socket:
        send(socket, type="chat", id="a", request=CHAT)
        assert receive_until_end(socket, "a")[-1]["type"] == "done"
        django_user_model.objects.filter(pk=admin_user.pk).update(is_active=False)
        send(socket, type="chat", id="b", request=CHAT)
        assert "session of this connection has ended" in receive(socket)["error"]["message"]
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        assert socket.close_code == 4401
    visitor = django_user_model.objects.create_user("visitor")
    with connect(ws_url, additional_headers=cookie(visitor)) as socket, pytest.raises(ConnectionClosed):
        socket.recv(timeout=60)


def test_pages_of_other_sites_are_closed(ws_url):
    with connect(ws_url, origin="http://evil.example") as socket:
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        assert socket.close_code == 4401


def test_breaking_off_right_after_the_request_cancels_it(ws_url, worker):
    """The socket may be gone before the first event was asked for: the generation must end all the same."""
    worker.script = endless
    for number in range(1, 11):
        with connect(ws_url) as socket:
            send(socket, type="chat", id="a", request=CHAT)
            wait_for(lambda expected=number: len(worker.messages) == expected)
    wait_for(lambda: len(worker.cancelled) == 10)


def test_a_waiting_request_reports_where_it_stands(socket, worker, monkeypatch):
    reported = threading.Event()

    def take_later(*arguments: Any) -> Any:
        """This worker doesn't say where the requests stand that it has taken."""
        return take_messages(*arguments) if reported.is_set() else None

    monkeypatch.setattr(scripted_worker, "take_messages", take_later)
    send(socket, type="chat", id="a", request={**CHAT, "stream_options": {"include_queue": True}})
    frames = [receive(socket), receive(socket)]
    reported.set()
    frames += receive_until_end(socket, "a")
    kinds = [frame["type"] for frame in frames]
    assert kinds[:2] == ["accepted", "queue"] and kinds[-1] == "done" and "queue" not in kinds[kinds.index("chunk") :]
    assert frames[1]["queue"]["position"] == 1


def test_bodies_of_running_requests_count_for_their_caller(ws_url, worker):
    """16 MiB in these tests, however many connections the caller has."""
    worker.script = endless
    body = orjson.dumps({"type": "chat", "id": "a", "request": CHAT}) + b" " * (6 << 20)
    with connect(ws_url) as first, connect(ws_url) as second, connect(ws_url) as third:
        for socket in (first, second):
            socket.send(body)
            assert receive(socket)["type"] == "accepted"
        third.send(body)
        refused = receive(third)
        assert (refused["id"], refused["status"], refused["error"]["code"]) == ("a", 429, "rate_limit_exceeded")
        send(first, type="cancel", id="a")
        assert receive_until_end(first, "a")[-1]["type"] == "cancelled"
        third.send(body)
        assert receive(third)["type"] == "accepted"


def test_a_first_request_that_crosses_the_close_does_not_hide_its_code(ws_url, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    with connect(ws_url) as socket:
        with contextlib.suppress(ConnectionClosed):
            socket.send(orjson.dumps({"type": "chat", "id": "a", "request": CHAT}) + b" " * 4096)
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        assert socket.close_code == 4401
