"""/v1/responses with OpenAI's own client: whole answers, conversations, stored responses, refusals."""

from __future__ import annotations

import threading
import time

import httpx
import openai
import pytest

from inference.access.api_keys import api_key_create
from inference.dialects.responses.serializers import ResponseRequest
from inference.errors import PromptTooLong
from inference.files.store import FileWriter
from inference.host.client_json import INLINE_BYTES
from inference.models import StoredResponse
from inference.records.stored_responses import responses_sweep
from inference.states.services import StateFacts, state_create
from inference.values.limits import KeyLimits
from inference.values.messages import StateOrder
from tests.inference.api.scripted_worker import Reply, say


def messages_of(worker) -> list[dict]:
    """The conversation that reached the worker last."""
    return worker.messages[-1]["prompt"]["messages"]


def test_whole_response(client, worker):
    before = int(time.time())
    response = client.responses.create(
        model="tiny", input="Hi", instructions="Be brief.", max_output_tokens=7, temperature=0.5, metadata={"a": "b"}
    )
    assert response.output_text == "Hello, world"
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert before <= response.created_at <= response.completed_at
    assert (response.max_output_tokens, response.temperature, response.top_p) == (7, 0.5, 1)
    assert (response.instructions, response.metadata, response.model) == ("Be brief.", {"a": "b"}, "tiny")
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 2, 7)
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert messages_of(worker) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert worker.messages[-1]["params"]["max_tokens"] == 7


def test_items_become_messages(client, worker):
    client.responses.create(
        model="tiny",
        input=[
            {"role": "developer", "content": "Rules."},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "three", "annotations": []}]},
            {"role": "user", "content": "four"},
        ],
    )  # fmt: skip
    assert messages_of(worker) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three", "reasoning_content": "hm"},
        {"role": "user", "content": "four"},
    ]


def test_sampling_parameters_reach_the_worker(client, worker):
    extra = {"seed": 7, "stop": ["x"], "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "priority": 3}
    client.responses.create(model="tiny", input="Hi", top_p=0.5, extra_body=extra)
    params = worker.messages[-1]["params"]
    assert (params["seed"], params["stop"], params["top_k"], params["min_p"]) == (7, ["x"], 5, 0.1)
    assert (params["top_p"], params["repetition_penalty"]) == (0.5, 1.5)
    assert worker.messages[-1]["priority"] == 3


def test_a_response_that_ran_out_of_tokens_is_incomplete(client, worker):
    worker.script = say("Hel", finish_reason="length")
    response = client.responses.create(model="tiny", input="Hi", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.completed_at is None
    assert client.responses.retrieve(response.id).status == "incomplete"


# --- lengths -----------------------------------------------------------------------------------


def test_input_tokens_are_what_generating_would_read(live_url, client, worker):
    first = client.responses.create(model="tiny", input="one")
    counted = client.responses.input_tokens.count(
        model="tiny", input="two", instructions="Rules.", previous_response_id=first.id
    )
    conversation = [
        {"role": "system", "content": "Rules."}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Hello, world"}, {"role": "user", "content": "two"},
    ]  # fmt: skip
    told = httpx.post(f"{live_url}/tokenize", json={"model": "tiny", "messages": conversation}, timeout=60).json()
    assert counted.input_tokens == told["count"] > 10
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model="tiny", input="two", extra_body={"temperature": 1})
    assert caught.value.param == "temperature"


@pytest.mark.parametrize(("max_output_tokens", "kept"), [(4090, ""), (3000, "34"), (2300, "234"), (None, "1234")])
def test_truncation_keeps_the_latest_turns_that_fit(client, worker, max_output_tokens, kept):
    # The model has 4,096 tokens; a turn has 500 and a few.
    items = [{"role": "developer", "content": "Rules."}]
    for number in "1234":
        items += [{"role": "user", "content": number + " x" * 250}, {"role": "assistant", "content": "y " * 250}]
    items += [{"role": "user", "content": "end"}]
    client.responses.create(model="tiny", input=items, truncation="auto", max_output_tokens=max_output_tokens)
    sent = messages_of(worker)
    assert sent[0] == {"role": "system", "content": "Rules."}
    assert sent[-1] == {"role": "user", "content": "end"}
    assert "".join(item["content"][0] for item in sent if item["role"] == "user") == f"{kept}e"


def test_a_conversation_that_was_cut_counts_also_when_it_is_refused(live_url, worker):
    _, key = api_key_create(name="a", limits=KeyLimits(requests=1, tokens=1000))
    items = [{"role": "user", "content": str(number)} for number in range(8)]
    body = {"model": "tiny", "input": items, "truncation": "auto", "max_output_tokens": 2000}
    headers = {"Authorization": f"Bearer {key}"}
    first, again = (
        httpx.post(f"{live_url}/v1/responses", json=body, headers=headers, timeout=60).json() for _ in range(2)
    )
    assert "asks for about 2,0" in first["error"]["message"]
    assert "limit of 1 requests a minute is reached" in again["error"]["message"]


# --- stored responses --------------------------------------------------------------------------


def test_retrieve_gives_what_was_answered_and_delete_forgets_it(client, worker):
    response = client.responses.create(model="tiny", input="Hi")
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as caught:
            call(response.id)
        assert response.id in caught.value.message


def test_nothing_is_kept_without_store(client, worker):
    response = client.responses.create(model="tiny", input="Hi", store=False)
    assert response.store is False
    assert not StoredResponse.objects.exists()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_conversation_goes_on_behind_a_response(client, worker):
    first = client.responses.create(model="tiny", input="one", instructions="Old rules.")
    second = client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    third = client.responses.create(
        model="tiny", input="three", instructions="New rules.", previous_response_id=second.id
    )
    assert third.previous_response_id == second.id
    assert [(item["role"], item["content"]) for item in messages_of(worker)] == [
        ("system", "New rules."),
        ("user", "one"),
        ("assistant", "Hello, world"),
        ("user", "two"),
        ("assistant", "Hello, world"),
        ("user", "three"),
    ]
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="four", previous_response_id=third.id)
    assert caught.value.param == "previous_response_id"
    assert first.id in caught.value.message


def test_a_long_conversation_is_planned_outside_of_the_event_loop(client, worker, monkeypatch):
    threads: list[str] = []
    plan = ResponseRequest.plan

    def recorded(self, history):
        threads.append(threading.current_thread().name)
        return plan(self, history)

    monkeypatch.setattr(ResponseRequest, "plan", recorded)
    first = client.responses.create(model="tiny", input="one")
    StoredResponse.objects.update(size_bytes=INLINE_BYTES + 1)
    client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    client.responses.input_tokens.count(model="tiny", input="two", previous_response_id=first.id)
    assert [name.startswith("json") for name in threads] == [False, True, True]


def test_input_items_are_listed_in_pages(client, worker):
    first = client.responses.create(model="tiny", input="one")
    second = client.responses.create(
        model="tiny", input=[{"role": "user", "content": text} for text in ("two", "three")],
        previous_response_id=first.id,
    )  # fmt: skip
    texts = [item.content[0].text for item in client.responses.input_items.list(second.id, limit=1)]
    assert texts == ["three", "two", "Hello, world", "one"]
    page = client.responses.input_items.list(second.id, order="asc", limit=3)
    assert [item.content[0].text for item in page.data] == ["one", "Hello, world", "two"]
    assert page.has_more
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_items.list(second.id, after="msg_none")
    assert caught.value.param == "after"


def test_a_key_sees_its_own_responses_only(live_url, client, worker):
    _, key = api_key_create(name="a")
    _, other = api_key_create(name="b")
    with (
        openai.OpenAI(base_url=f"{live_url}/v1", api_key=key, max_retries=0) as mine,
        openai.OpenAI(base_url=f"{live_url}/v1", api_key=other, max_retries=0) as theirs,
    ):
        response = mine.responses.create(model="tiny", input="Hi")
        assert mine.responses.retrieve(response.id).id == response.id
        for stranger in (theirs, client):
            for call in (stranger.responses.retrieve, stranger.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    call(response.id)
            with pytest.raises(openai.BadRequestError):
                stranger.responses.create(model="tiny", input="Hi", previous_response_id=response.id)
        assert mine.responses.retrieve(response.id).id == response.id


def test_old_responses_are_swept(client, worker, settings):
    from datetime import timedelta

    from django.utils import timezone

    old = client.responses.create(model="tiny", input="old")
    new = client.responses.create(model="tiny", input="new")
    settings.BLAZR_RESPONSE_RETENTION_DAYS = 2
    StoredResponse.objects.filter(response_id=old.id).update(created_at=timezone.now() - timedelta(days=2, seconds=1))
    assert responses_sweep() == 1
    assert [row.response_id for row in StoredResponse.objects.all()] == [new.id]


# --- errors ------------------------------------------------------------------------------------


def test_errors_on_the_wire(live_url, worker):
    for members, status, code in (
        ({"temperature": 3}, 400, "invalid_value"),
        ({"frobnicate": 1}, 400, "unsupported_parameter"),
        ({"previous_response_id": "resp_none"}, 400, "invalid_request"),
        ({"model": "missing"}, 404, "model_not_found"),
    ):
        answer = httpx.post(f"{live_url}/v1/responses", json={"model": "tiny", "input": "Hi", **members}, timeout=60)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (next(iter(members)), code)
    assert not worker.messages


def test_the_workers_refusal_names_the_field_as_it_is_called_here(client, worker):
    def script(reply: Reply):
        yield reply.error(PromptTooLong("prompt has 9 tokens and max_tokens is 5, too many.", param="max_tokens"))

    worker.script = script
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", max_output_tokens=5)
    assert caught.value.param == "max_output_tokens"
    assert "max_output_tokens is 5" in caught.value.message


def test_a_conversation_goes_on_behind_its_state(client, worker, settings, tmp_path):
    """The later request names the earlier response only, and the worker gets the state's file with it."""
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    writer = FileWriter()
    writer.write(b"content")
    order = StateOrder(name="manual", tenant="local", model="tiny", is_pinned=False, expires_s=None, replaces=False)
    facts = StateFacts("tiny", "a" * 64, 7, has_conversation=True)
    digest = state_create(writer=writer, facts=facts, order=order).file.sha256
    first = client.responses.create(model="tiny", input="one", extra_body={"state": "manual"})
    assert first.to_dict()["state"] == "manual" and worker.messages[-1]["state"] == digest
    client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    assert worker.messages[-1]["state"] == digest
    assert [message["content"] for message in messages_of(worker)] == ["one", "Hello, world", "two"]
    for members, param in (
        ({"extra_body": {"state": "none"}}, "state"),
        ({"extra_body": {"state": "other"}, "previous_response_id": first.id}, "state"),
        ({"truncation": "auto", "previous_response_id": first.id}, "truncation"),
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            client.responses.create(model="tiny", input="three", **members)
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError, match="can't be counted"):
        client.responses.input_tokens.count(model="tiny", input="x", previous_response_id=first.id)
