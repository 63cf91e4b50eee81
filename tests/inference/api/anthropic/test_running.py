"""Anthropic's generations: frames of a stream, errors in it, why it stopped."""

from __future__ import annotations

import json

import anthropic
import httpx
import pytest

from inference.api.anthropic.running import RunningMessage
from inference.dialects.anthropic.events import MessageEvents
from inference.dialects.chat_bridge import EndPiece
from inference.errors import GenerationFailed
from tests.inference.api.anthropic.test_views import BODY, MESSAGES, USAGE
from tests.inference.api.scripted_worker import Reply


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "expected"),
    [("stop", None, ("end_turn", None)), ("stop", "END", ("stop_sequence", "END")), ("stop", 7, ("end_turn", None)),
     ("length", None, ("max_tokens", None)), ("tool_calls", None, ("tool_use", None))],
)  # fmt: skip
def test_why_it_stopped(finish_reason, stop_reason, expected):
    machine = MessageEvents(message_id="msg_1", model="tiny")
    machine.take(EndPiece(finish_reason, stop_reason))
    machine.finished(USAGE)
    assert (machine.message["stop_reason"], machine.message["stop_sequence"]) == expected


def test_frames_of_a_stream(live_url, worker):
    answer = httpx.post(f"{live_url}/v1/messages", json={**BODY, "stream": True}, timeout=60)
    assert answer.headers["content-type"] == "text/event-stream"
    frames = [frame.split("\n") for frame in answer.text.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 5
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_an_error_in_the_middle_of_a_stream_is_an_event(claude, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("the logits are not finite"))

    worker.script = script
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite"),
        claude.messages.stream(model="tiny", max_tokens=9, messages=MESSAGES) as stream,
    ):
        list(stream)


def test_a_waiting_stream_says_where_it_stands(live_url, in_line):
    body = {**BODY, "stream": True, "stream_options": {"include_queue": True}}
    names, places = [], []
    with httpx.stream("POST", f"{live_url}/v1/messages", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: ") and names[-1] == "blazr.queue":
                in_line.set()
                places.append(json.loads(line.removeprefix("data: ")))
    first = names.index("message_start")
    assert first == len(places) > 0 and set(names[:first]) == {"blazr.queue"}
    assert places[0]["type"] == "blazr.queue" and places[0]["queue"]["position"] == 2
    assert names[-1] == "message_stop"


def test_anthropics_own_client_passes_over_the_queue(claude, in_line, monkeypatch):
    waiting = RunningMessage.waiting

    def recorded(self, place):
        in_line.set()
        return waiting(self, place)

    monkeypatch.setattr(RunningMessage, "waiting", recorded)
    options = {"extra_body": {"stream_options": {"include_queue": True}}}
    with claude.messages.stream(model="tiny", max_tokens=9, messages=MESSAGES, **options) as stream:
        assert "".join(stream.text_stream) == "Hi"
        assert stream.get_final_message().stop_reason == "end_turn"
    assert in_line.is_set()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"stream_options": {"include_queue": True}}, "stream_options only goes with stream: true"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage is not supported"),
        ({"stream": True, "stream_options": {"include_queue": 1}}, "it must be true or false"),
    ],
)
def test_stream_options_that_cannot_be_honoured_are_named(live_url, worker, members, words):
    answer = httpx.post(f"{live_url}/v1/messages", json={**BODY, **members}, timeout=60)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]
