"""Responses that run in the request: failures, clients that leave, log-probabilities."""

from __future__ import annotations

import openai
import pytest

from inference.errors import GenerationFailed
from inference.models import StoredResponse
from tests.inference.api.openai.test_views_openai_client import entry, wait_for
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.slow_reader import sent_request


def test_logprobs_are_included_when_asked_for(client, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hi", logprobs=[entry("Hi", 1000, -0.5, [("Ho", 1001, -1.0)])], finish_reason="stop")
        yield reply.done()

    worker.script = script
    response = client.responses.create(
        model="tiny", input="Hi", include=["message.output_text.logprobs"], top_logprobs=1
    )
    (found,) = response.output[0].content[0].logprobs
    assert (found.token, found.logprob) == ("Hi", -0.5)
    assert worker.messages[-1]["params"]["logprobs"] == 1


def test_a_failure_has_its_status_and_is_not_kept(client, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.error(GenerationFailed("the logits are not finite"))

    worker.script = script
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.responses.create(model="tiny", input="Hi")
    assert not StoredResponse.objects.exists()


def test_leaving_cancels_the_generation(live_url, worker):
    def script(reply: Reply):
        yield reply.start()
        reply.cancelled.wait(60)

    worker.script = script
    with sent_request(live_url, "/v1/responses", {"model": "tiny", "input": "Hi"}):
        wait_for(lambda: worker.messages)
    wait_for(lambda: worker.cancelled == [worker.messages[-1]["request_id"]])
    assert not StoredResponse.objects.exists()


def test_a_waiting_stream_says_where_it_stands_behind_created_and_queued(client, in_line):
    """OpenAI's package hands on events that it doesn't know."""
    stream = client.responses.create(model="tiny", input="Hi", stream=True, stream_options={"include_queue": True})
    events = []
    for event in stream:
        events.append(event)
        if event.type == "blazr.queue":
            in_line.set()
    names = [event.type for event in events]
    first = names.index("response.in_progress")
    assert names[:3] == ["response.created", "response.queued", "blazr.queue"]
    assert set(names[2:first]) == {"blazr.queue"} and "blazr.queue" not in names[first:]
    assert names[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == "queued" and events[-1].response.output_text == "Hi"
    place = events[2].model_dump()["queue"]
    assert place == {
        "position": 2, "waits_for": "capacity", "estimated_s": 1.5, "load_left_s": None, "evicts": None
    }  # fmt: skip


def test_the_clients_own_accumulation_passes_over_the_queue(client, in_line):
    with client.responses.stream(model="tiny", input="Hi", stream_options={"include_queue": True}) as stream:
        for event in stream:
            if event.type == "blazr.queue":
                in_line.set()
        final = stream.get_final_response()
    assert in_line.is_set() and final.output_text == "Hi"


def test_a_failure_behind_the_queue_is_the_last_event(client, worker, in_line):
    def script(reply: Reply):
        assert in_line.wait(60)
        yield reply.error(GenerationFailed("the logits are not finite"))

    worker.script = script
    events = []
    for event in client.responses.create(model="tiny", input="Hi", stream=True, stream_options={"include_queue": True}):
        events.append(event)
        if event.type == "blazr.queue":
            in_line.set()
    assert events[-1].type == "response.failed" and "not finite" in events[-1].response.error.message
    assert StoredResponse.objects.count() == 1


def test_the_queue_of_a_background_response_is_refused(client, worker):
    with pytest.raises(openai.BadRequestError, match="include_queue doesn't go with background"):
        client.responses.create(
            model="tiny", input="Hi", stream=True, background=True, stream_options={"include_queue": True}
        )
