"""The real openai package against a live server: shapes, streams, error classes."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import openai
import orjson
import pytest

from inference.errors import GenerationFailed, PromptTooLong, QueueFull
from tests.inference.api.scripted_worker import Reply, say
from tests.inference.api.slow_reader import sent_request
from tests.inference.rows import make_checkpoint

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def entry(token: str, token_id: int, logprob: float, top: list[tuple[str, int, float]] = []) -> dict[str, Any]:  # noqa: B006
    """A LogprobEntry."""
    found = {"token_id": token_id, "token": token, "bytes": list(token.encode()), "logprob": logprob}
    return found | {
        "top": [
            {"token_id": other, "token": text, "bytes": list(text.encode()), "logprob": value}
            for text, other, value in top
        ]
    }


def test_chat_completion_has_openai_s_shape(client, worker):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 2, 7)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_message_reaches_the_worker_checked(client, worker, checkpoint):
    client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "Be brief."}, *MESSAGES],
        max_completion_tokens=7,
        temperature=0,
        stop="END",
        seed=3,
        user="somebody",
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}, "priority": -3, "cache_salt": "s"},
    )
    message = worker.messages[-1]
    assert message["model"] == str(checkpoint.pk)
    assert message["prompt"]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert message["prompt"]["template_kwargs"] == {"enable_thinking": False}
    assert message["params"] == {"max_tokens": 7, "temperature": 0.0, "top_k": 5, "stop": ["END"], "seed": 3}
    assert message["priority"] == -3
    assert message["cache_salt"] == "\ns"
    assert message["attempt"] == 0
    assert message["deadline"] > time.time()


def test_seed_is_settled_by_the_web_process(client, worker):
    client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert isinstance(worker.messages[-1]["params"]["seed"], int)


def test_chat_stream_chunks(client, worker):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello, world"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_raw_stream_is_server_sent_events(live_url, worker):
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    with httpx.stream("POST", f"{live_url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        raw = response.read().decode()
    events = raw.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    payloads = [orjson.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert all("usage" not in payload for payload in payloads)
    assert payloads[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]


def test_completion_with_n_choices_and_several_prompts(client, worker):
    answer = client.completions.create(model="tiny", prompt=["one", "two"], n=2, max_tokens=4)
    assert answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"Hello, world"}
    assert answer.usage.prompt_tokens == 10
    assert answer.usage.completion_tokens == 8
    seeds = {message["params"]["seed"] for message in worker.messages}
    assert len(seeds) == 2


def test_completion_stream(client, worker):
    chunks = list(client.completions.create(model="tiny", prompt="x", stream=True))
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello, world"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "stop"]


def test_token_id_prompts_and_default_max_tokens(client, worker):
    client.completions.create(model="tiny", prompt=[1, 2, 3])
    assert worker.messages[-1]["prompt"] == {"token_ids": [1, 2, 3]}
    assert worker.messages[-1]["params"]["max_tokens"] == 16


def test_echo_with_logprobs_scores_the_prompt(client, worker):
    def script(reply: Reply):
        yield reply.start(
            prompt_text="a b",
            prompt_token_ids=[64, 293],
            prompt_logprobs=[None, entry(" b", 293, -1.5, [(" b", 293, -1.5), (" c", 272, -2.0)])],
        )
        yield reply.delta(
            " c", token_ids=[272], logprobs=[entry(" c", 272, -0.5, [(" c", 272, -0.5)])], finish_reason="length"
        )
        yield reply.done()

    worker.script = script
    answer = client.completions.create(model="tiny", prompt="a b", echo=True, logprobs=1, max_tokens=1)
    assert worker.messages[-1]["echo"] is True
    assert worker.messages[-1]["params"]["prompt_logprobs"] == 1
    choice = answer.choices[0]
    assert choice.text == "a b c"
    assert choice.logprobs.tokens == ["a", " b", " c"]
    assert choice.logprobs.token_logprobs == [None, -1.5, -0.5]
    assert choice.logprobs.top_logprobs == [None, {" b": -1.5}, {" c": -0.5}]
    assert choice.logprobs.text_offset == [0, 1, 3]


def test_streamed_echo_begins_with_the_prompt(client, worker):
    def script(reply: Reply):
        yield reply.start(prompt_text="a b", prompt_token_ids=[64, 293], prompt_logprobs=[None, entry(" b", 293, -1.5)])
        yield reply.delta(" c", token_ids=[272], logprobs=[entry(" c", 272, -0.5)], finish_reason="length")
        yield reply.done()

    worker.script = script
    chunks = list(
        client.completions.create(model="tiny", prompt="a b", echo=True, logprobs=0, max_tokens=1, stream=True)
    )
    assert [chunk.choices[0].text for chunk in chunks] == ["a b", " c"]
    assert chunks[0].choices[0].logprobs.tokens == ["a", " b"]
    assert chunks[1].choices[0].logprobs.text_offset == [3]


def test_chat_logprobs_and_token_ids(client, worker):
    def script(reply: Reply):
        yield reply.start(prompt_token_ids=[1, 2])
        top = [("Hi", 13347, -0.1), ("Yo", 61609, -2.5)]
        yield reply.delta("Hi", token_ids=[13347], logprobs=[entry("Hi", 13347, -0.1, top)], finish_reason="stop")
        yield reply.done()

    worker.script = script
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True}
    )
    position = answer.choices[0].logprobs.content[0]
    assert (position.token, position.logprob, position.bytes) == ("Hi", -0.1, [72, 105])
    assert [item.token for item in position.top_logprobs] == ["Hi", "Yo"]
    assert answer.choices[0].token_ids == [13347]
    assert answer.prompt_token_ids == [1, 2]
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, extra_body={"return_tokens_as_token_ids": True}
    )
    assert answer.choices[0].logprobs.content[0].token == "token_id:13347"


def test_prompt_logprobs_as_vllm_writes_them(client, worker):
    def script(reply: Reply):
        yield reply.start(prompt_logprobs=[None, entry(" b", 293, -3.0, [(" c", 272, -0.5)])])
        yield reply.delta("x", finish_reason="length")
        yield reply.done()

    worker.script = script
    answer = client.completions.create(model="tiny", prompt="a b", extra_body={"prompt_logprobs": 1})
    assert answer.choices[0].prompt_logprobs == [
        None,
        {
            "293": {"logprob": -3.0, "rank": None, "decoded_token": " b"},
            "272": {"logprob": -0.5, "rank": 1, "decoded_token": " c"},
        },
    ]


# --- errors ------------------------------------------------------------------------------------


def test_unknown_model_is_not_found(client, worker):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="missing", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_bad_parameter_is_a_bad_request_that_names_it(client, worker):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert caught.value.param == "temperature"
    assert caught.value.body["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"frobnicate": 1})
    assert caught.value.code == "unsupported_parameter"
    assert "frobnicate" in caught.value.body["message"]
    assert not worker.messages


@pytest.mark.parametrize("stream", [False, True])
def test_error_before_the_first_token_has_its_own_status(client, worker, stream):
    def script(reply: Reply):
        yield reply.error(PromptTooLong.of(4096, 5210, noun="messages"))

    worker.script = script
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_full_queue_is_a_rate_limit_error_with_retry_after(client, worker, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 0
    for _ in range(2):  # the second one without asking the queue
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) > 0
    assert not worker.cancelled


def test_one_refused_prompt_cancels_the_others(client, worker):
    def script(reply: Reply):
        if reply.message["prompt"]["text"] == "bad":
            yield reply.error(QueueFull("no room"))
            return
        yield reply.start()
        reply.cancelled.wait(60)

    worker.script = script
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny", prompt=["good", "bad"])
    wait_for(lambda: len(worker.cancelled) == 1)


def test_error_in_the_middle_of_a_stream_comes_as_an_event(live_url, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("the logits are not finite"))

    worker.script = script
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    raw = httpx.post(f"{live_url}/v1/chat/completions", json=body, timeout=60).text
    events = raw.split("\n\n")
    assert '"content":"Hel"' in raw
    assert orjson.loads(events[-3].removeprefix("data: "))["error"] == {
        "message": "the logits are not finite",
        "type": "server_error",
        "param": None,
        "code": "generation_failed",
    }
    assert events[-2] == "data: [DONE]"


def test_error_in_the_middle_of_a_stream_is_raised_by_the_client(client, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("broken"))

    worker.script = script
    with pytest.raises(openai.APIError, match="broken"):
        list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))


def test_redis_gone_is_unavailable_and_quick(client, worker, settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
    started = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.status_code == 503
    assert time.monotonic() - started < 30


def test_model_without_tokenizer_takes_token_ids_only(client, worker, transactional_db):
    row = make_checkpoint("ids-only", kind="none", template=None)
    worker.checkpoint_ids.add(str(row.pk))
    assert client.completions.create(model="ids-only", prompt=[1, 2]).choices[0].text == "Hello, world"
    for call in (
        lambda: client.completions.create(model="ids-only", prompt="text"),
        lambda: client.chat.completions.create(model="ids-only", messages=MESSAGES),
        lambda: client.completions.create(model="ids-only", prompt=[1], stop="x"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert caught.value.code == "unsupported_parameter"


def test_token_ids_beyond_the_vocabulary_never_reach_the_queue(client, worker):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1, 100331])
    assert caught.value.code == "invalid_token_ids"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1] * 5000)
    assert caught.value.code == "context_length_exceeded"
    assert not worker.messages


# --- cancelling --------------------------------------------------------------------------------


def wait_for(condition, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def endless(reply: Reply):
    yield reply.start()
    while not reply.cancelled.is_set():
        yield reply.delta("x ")
        time.sleep(0.02)


def test_leaving_a_stream_cancels_the_generation(client, worker):
    worker.script = endless
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    wait_for(lambda: worker.cancelled == [worker.messages[-1]["request_id"]])


@pytest.mark.parametrize(
    ("script", "num_events"), [(endless, 4), (lambda reply: iter(()), 0)], ids=["decoding", "queued"]
)
def test_leaving_without_a_stream_cancels_the_generation(live_url, worker, script, num_events):
    made = []

    def recorded(reply: Reply):
        for event in script(reply):
            yield event
            made.append(event)

    worker.script = recorded
    with sent_request(live_url, "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES}):
        wait_for(lambda: worker.messages and len(made) >= num_events)
    wait_for(lambda: worker.cancelled == [worker.messages[-1]["request_id"]])


def test_many_streams_at_once_keep_their_tokens_apart(live_url, worker):
    import asyncio

    def script(reply: Reply):
        name = reply.message["prompt"]["text"]
        yield reply.start()
        for number in range(10):
            yield reply.delta(f"{name}.{number} ")
        yield reply.delta("", token_ids=[], finish_reason="stop")
        yield reply.done()

    worker.script = script

    async def one(client: openai.AsyncOpenAI, number: int) -> None:
        stream = await client.completions.create(model="tiny", prompt=f"p{number}", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == "".join(f"p{number}.{index} " for index in range(10))

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{live_url}/v1", api_key="-", max_retries=0, timeout=60) as client:
            await asyncio.gather(*(one(client, number) for number in range(40)))

    thread_error: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            thread_error.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join(120)
    assert not thread_error, thread_error
    assert not thread.is_alive()


def test_models_list_and_retrieve(client, worker):
    assert [model.id for model in client.models.list()] == ["tiny"]
    model = client.models.retrieve("tiny")
    assert (model.object, model.owned_by, model.max_model_len) == ("model", "local", 4096)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/knows")


def test_whole_answer_of_an_empty_generation(client, worker):
    worker.script = say("", finish_reason="length")
    assert client.chat.completions.create(model="tiny", messages=MESSAGES).choices[0].message.content == ""
