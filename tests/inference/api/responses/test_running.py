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
