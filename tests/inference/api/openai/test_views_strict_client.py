"""Every endpoint of OpenAI's client with its strict validation: a response that its models don't know is an error.

Two things can't be validated, as OpenAI's own responses fail there as well: a stream of the legacy completions (all
chunks but the last have ``finish_reason: null``, and the package's model of a chunk is that of a whole completion,
which takes no null) and embeddings in base64 (the package's model knows lists only; it decodes the text afterwards).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from inference.batches import runner as batch_runner
from inference.batches.services import batch_get
from inference.jobs import hints
from inference.jobs import runner as job_runner
from inference.jobs.runner import JobRunner
from inference.values.principal import LOCAL
from models_registry import aliases
from tests.inference.api.openai.test_views_openai_client import entry
from tests.inference.api.openai.test_views_tool_calls import ASK, TOOL_TEMPLATE, TWO_CALLS, WEATHER, pieces
from tests.inference.api.scripted_worker import Reply, say
from tests.inference.batches.fakes import EchoManager, make_runner, work
from tests.inference.rows import make_checkpoint
from tests.inference.worker.scripted_manager import ScriptedManager

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def strict(live_url: str, worker) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{live_url}/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as found:
        yield found


@pytest.fixture
def caller(strict, worker) -> openai.OpenAI:
    """The client of a model that calls tools."""
    worker.script = say(*pieces(TWO_CALLS))
    row = make_checkpoint("caller", template=TOOL_TEMPLATE)
    worker.checkpoint_ids.add(str(row.pk))
    return strict


def with_logprobs(reply: Reply) -> Iterator[dict[str, Any]]:
    yield reply.start()
    yield reply.delta("Hi", logprobs=[entry("Hi", 7, -0.5, [("Hi", 7, -0.5), ("Ho", 8, -1.0)])])
    yield reply.delta("", logprobs=[], finish_reason="length", stop_reason=None)
    yield reply.done(cached_tokens=3)


def embed(reply: Reply) -> Iterator[dict[str, Any]]:
    yield reply.start()
    for number in range(len(reply.message["prompt"]["inputs"])):
        data = base64.b64encode(np.array([0.6, 0.8], dtype="<f4").tobytes()).decode()
        yield reply.delta("", choice=number, token_ids=[], embedding=data, finish_reason="stop")
    yield reply.done()


def test_the_validation_is_strict(strict, monkeypatch):
    """A member that the package requires and the answer lacks is an error: the other tests prove something."""
    from inference.dialects.responses import events

    def without_cache_writes(usage: dict[str, Any]) -> dict[str, Any]:
        return {**known(usage), "input_tokens_details": {"cached_tokens": 0}}

    known = events.response_usage
    monkeypatch.setattr(events, "response_usage", without_cache_writes)
    with pytest.raises(openai.APIResponseValidationError):
        strict.responses.create(model="tiny", input="Hi")


def test_models(strict, checkpoint, admin_headers):
    (found,) = strict.models.list()
    assert strict.models.retrieve(found.id).id == "tiny"
    aliases.alias_promote(name="prod", checkpoint=checkpoint)
    assert strict.models.delete("prod", extra_headers=admin_headers).deleted


def test_completions(strict, worker):
    assert strict.completions.create(model="tiny", prompt=["a", "b"], n=2).choices[3].text == "Hello, world"
    worker.script = with_logprobs
    found = strict.completions.create(model="tiny", prompt="a", logprobs=2)
    assert found.choices[0].logprobs.top_logprobs == [{"Hi": -0.5, "Ho": -1.0}]


def test_chat_completions(strict, worker):
    found = strict.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in found.choices] == ["Hello, world"] * 2
    stream = strict.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert list(stream)[-1].usage.completion_tokens == 2
    worker.script = with_logprobs
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = strict.chat.completions.create(**options)
    assert whole.choices[0].logprobs.content[0].top_logprobs[1].token == "Ho"
    assert whole.usage.prompt_tokens_details.cached_tokens == 3
    chunks = list(strict.chat.completions.create(**options, stream=True))
    assert any(chunk.choices[0].logprobs for chunk in chunks)


def test_tool_calls(caller):
    body = {**ASK, "model": "caller", "tools": [WEATHER]}
    assert len(caller.chat.completions.create(**body).choices[0].message.tool_calls) == 2
    calls = [call for chunk in caller.chat.completions.create(**body, stream=True)
             for choice in chunk.choices for call in choice.delta.tool_calls or ()]  # fmt: skip
    assert {call.index for call in calls} == {0, 1}
    tool = {"type": "function", **WEATHER["function"]}
    found = caller.responses.create(model="caller", input="Warm?", tools=[tool])
    assert [item.name for item in found.output if item.type == "function_call"] == ["weather", "weather"]
    events = list(caller.responses.create(model="caller", input="Warm?", tools=[tool], stream=True))
    assert "response.function_call_arguments.done" in {event.type for event in events}


def test_embeddings(strict, worker):
    worker.script = embed
    found = strict.embeddings.create(model="tiny", input=["a", "b"], encoding_format="float")
    np.testing.assert_allclose(found.data[1].embedding, [0.6, 0.8], rtol=1e-6)


def test_responses(strict, worker):
    made = strict.responses.create(model="tiny", input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert made.usage.input_tokens_details.cache_write_tokens == 0
    assert strict.responses.retrieve(made.id).output_text == "Hello, world"
    assert [item.type for item in strict.responses.input_items.list(made.id)] == ["message"]
    assert strict.responses.input_tokens.count(model="tiny", input="Hi").input_tokens > 0
    events = list(strict.responses.create(model="tiny", input="Hi", previous_response_id=made.id, stream=True))
    assert events[-1].response.usage.input_tokens_details.cache_write_tokens == 0
    with strict.responses.stream(model="tiny", input="Hi") as stream:
        assert stream.get_final_response().output_text == "Hello, world"
    worker.script = with_logprobs
    found = strict.responses.create(
        model="tiny", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=1
    )
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage.input_tokens_details.cached_tokens == 3
    assert strict.responses.delete(made.id) is None


def test_background_responses(strict, checkpoint, monkeypatch):
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "SWEEP_S", "MIN_AGE_ELSEWHERE_S"):
        monkeypatch.setattr(job_runner, name, 0.0)
    manager = ScriptedManager(str(checkpoint.pk))
    runner = JobRunner(manager, owner="w")
    made = strict.responses.create(model="tiny", input="Hi", background=True)
    assert strict.responses.retrieve(made.id).status == "queued"
    runner.turn()
    request_id = list(manager.messages)[-1]
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hello", 1, finish_reason="stop", stop_reason=None)
    manager.done(request_id)
    runner.turn()
    done = strict.responses.retrieve(made.id)
    assert (done.status, done.output_text) == ("completed", "Hello")
    assert list(strict.responses.retrieve(made.id, stream=True))[-1].type == "response.completed"
    other = strict.responses.create(model="tiny", input="Hi", background=True)
    assert strict.responses.cancel(other.id).status == "cancelled"


def test_files_and_batches(strict, checkpoint, settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "RETRY_DELAY_S"):
        monkeypatch.setattr(batch_runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    body = {"model": "tiny", "messages": MESSAGES}
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body} for name in "ab"]
    file = strict.files.create(file=("in.jsonl", b"\n".join(map(orjson.dumps, lines))), purpose="batch")
    assert strict.files.retrieve(file.id) == file
    made = strict.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert made.usage.input_tokens_details.cached_tokens == 0
    work(batch_get(batch_id=made.id, principal=LOCAL), make_runner(EchoManager(str(checkpoint.pk))))
    done = strict.batches.retrieve(made.id)
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens > 0
    assert done.usage.output_tokens_details.reasoning_tokens == 0
    other = strict.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert strict.batches.cancel(other.id).id == other.id
    assert {item.id for item in strict.batches.list()} == {made.id, other.id}
    assert strict.files.content(done.output_file_id).text.count("\n") == 2
    assert {item.id for item in strict.files.list()} >= {file.id, done.output_file_id}
    assert strict.files.delete(file.id).deleted


def test_errors_are_read_by_their_class(strict):
    with pytest.raises(openai.NotFoundError) as caught:
        strict.chat.completions.create(model="nobody", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        strict.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=0)
    assert refused.value.param == "max_completion_tokens"
