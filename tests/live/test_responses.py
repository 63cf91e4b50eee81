"""Background responses on the real platform: cancelled in the middle; taken up again over a killed worker."""

from __future__ import annotations

import os
import signal
import sqlite3
from typing import Any

import openai
import pytest

from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.live
WORKER = "celery -q -A blazr_site.celery worker"
LONG: Any = {"max_output_tokens": 900, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def submit(client: openai.OpenAI, text: str = "What is a list?", **options: Any) -> str:
    return client.responses.create(model="demo", input=text, background=True, **{**LONG, **options}).id


def job_of(server: LiveServer, response_id: str) -> tuple[str, int, int]:
    """State, fencing number (how often it was claimed) and stored chunks of the response's job."""
    with sqlite3.connect(server.data_dir / "db.sqlite3", timeout=20) as database:
        return database.execute(
            "select job.state, job.fence, (select count(*) from inference_jobchunk where job_id = job.id)"
            " from inference_generationjob job where batch_label = ?",
            (response_id,),
        ).fetchone()


def events_of(client: openai.OpenAI, response_id: str, **members: Any) -> list[dict[str, Any]]:
    with client.responses.retrieve(response_id, stream=True, **members) as stream:
        return [event.to_dict() for event in stream]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def wait_for_text(server: LiveServer, response_id: str) -> None:
    wait_until(lambda: job_of(server, response_id)[2], 60, "the first stored tokens")


def test_a_background_response_is_cancelled_in_the_middle(server, client):
    for _ in range(5):
        watched, *others = [submit(client) for _ in range(20)]  # the others slow it down
        wait_for_text(server, watched)
        with server.held_worker():  # so that it isn't through before the cancellation
            is_running = job_of(server, watched)[0] == "running"
            client.responses.cancel(watched)
        for response_id in others:
            client.responses.cancel(response_id)
        if is_running:
            break
    else:  # this process had no processor for as long as a response took
        pytest.fail("no cancellation hit a running response")
    ended = wait_until(
        lambda: (found := client.responses.retrieve(watched)).status not in ("queued", "in_progress") and found,
        60,
        "the cancellation",
    )
    assert (ended.status, ended.error) == ("cancelled", None)
    assert job_of(server, watched)[0] == "cancelled"
    told = events_of(client, watched)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.cancelled"
    assert text_of(told) == ended.output_text != ""
    assert events_of(client, watched, starting_after=len(told) - 2) == told[-1:]
    assert client.responses.cancel(watched).status == "cancelled"  # once more changes nothing
    wait_until(lambda: server.model().num_running == 0, 60, "the end of the requests")


def test_a_stream_is_taken_up_again_over_a_killed_worker(server, client):
    questions = [f"What is a list of {number}?" for number in range(6)]
    undisturbed = client.responses.create(model="demo", input=questions[0], **LONG)
    assert undisturbed.incomplete_details.reason == "max_output_tokens"
    watched, *others = [submit(client, question) for question in questions]
    wait_for_text(server, watched)
    victim = server.pid_of(WORKER)
    os.kill(victim, signal.SIGSTOP)  # what follows takes time, in which it would get through
    state, claimed, _ = job_of(server, watched)
    assert state == "running"
    begun: list[dict[str, Any]] = []
    with client.responses.retrieve(watched, stream=True) as stream:
        for event in stream:
            begun.append(event.to_dict())
            if event.type == "response.output_text.delta":
                break
    os.kill(victim, signal.SIGKILL)
    rest = events_of(client, watched, starting_after=begun[-1]["sequence_number"])
    told = [*begun, *rest]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.incomplete"
    assert text_of(told) == undisturbed.output_text == told[-1]["response"]["output"][0]["content"][0]["text"]
    assert told[-1]["response"]["usage"]["output_tokens"] == 900
    assert job_of(server, watched)[:2] == ("succeeded", claimed + 1)
    assert server.pid_of(WORKER) != victim
    assert events_of(client, watched) == told
    for response_id in others:
        ended = wait_until(
            lambda at=response_id: (found := client.responses.retrieve(at)).status == "incomplete" and found,
            90,
            "the other responses",
        )
        assert ended.usage.output_tokens == 900
