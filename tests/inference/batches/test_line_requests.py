"""Lines of every endpoint as requests, and lines that are none."""

from __future__ import annotations

from inference.errors import InvalidRequest
from inference.models import UsageRecord
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.batches.test_runner import embed, respond


def test_lines_of_embeddings_have_the_answers_of_their_endpoint(manager):
    batch = make_batch(
        [
            embed("one", "abc", normalize=False),
            embed("many", ["x"] * 100, normalize=False, dimensions=1),
            embed("packed", [[1, 2]], encoding_format="base64"),
            embed("wide", "abc", dimensions=4096),
            embed("prompt", "abc", temperature=1),
        ],
        endpoint="/v1/embeddings",
    )
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 3, 2)
    output = {item["custom_id"]: item["response"]["body"] for item in contents(batch.output_file_id)}
    (one,) = output["one"]["data"]
    assert (one["object"], one["index"], one["embedding"]) == ("embedding", 0, [3.0] + [0.0] * 14 + [1.0])
    assert output["one"]["id"].startswith("embd-")
    assert output["one"]["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert [item["index"] for item in output["many"]["data"]] == list(range(100))
    assert output["many"]["data"][99]["embedding"] == [1.0]
    assert isinstance(output["packed"]["data"][0]["embedding"], str)
    errors = {item["custom_id"]: item["response"]["body"]["error"] for item in contents(batch.error_file_id)}
    assert {name: item["param"] for name, item in errors.items()} == {"wide": "dimensions", "prompt": "temperature"}
    (usage,) = UsageRecord.objects.all()
    assert (usage.prompt_tokens, usage.completion_tokens) == (206, 0)  # the wide one was computed


def test_lines_of_responses_have_the_answers_of_their_endpoint(manager):
    refused = {
        "stream": True,
        "background": True,
        "store": True,
        "previous_response_id": "resp_1",
        "truncation": "auto",
    }
    batch = make_batch(
        [
            respond("text", metadata={"a": "b"}, instructions="Be short."),
            respond("items", [{"role": "user", "content": [{"type": "input_text", "text": "def"}]}], store=False),
            respond("odd", max_output_tokens=0),
            respond("long", "fail"),
            *(respond(name, **{name: value}) for name, value in refused.items()),
        ],
        endpoint="/v1/responses",
    )
    manager.failure = lambda message: (
        InvalidRequest("messages are too long.", param="messages")
        if message["prompt"]["messages"][-1]["content"] == "fail"
        else None
    )
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 2, 7)
    output = {item["custom_id"]: item["response"]["body"] for item in contents(batch.output_file_id)}
    first = output["text"]
    assert (first["object"], first["status"], first["store"]) == ("response", "completed", False)
    assert (first["model"], first["metadata"], first["instructions"]) == ("tiny", {"a": "b"}, "Be short.")
    assert first["id"].startswith("resp_")
    assert [item["content"][0]["text"] for item in first["output"]] == ["cba"]
    assert (first["usage"]["input_tokens"], first["usage"]["output_tokens"]) == (3, 2)
    assert output["items"]["output"][0]["content"][0]["text"] == "fed"
    errors = {item["custom_id"]: item["response"]["body"]["error"] for item in contents(batch.error_file_id)}
    assert {name: item["param"] for name, item in errors.items()} == {
        "odd": "max_output_tokens", "long": "input", **{name: name for name in refused},
    }  # fmt: skip


def test_bad_lines_end_in_the_error_file_and_the_rest_runs(manager):
    batch = make_batch(
        [
            line("good"),
            line("hot", temperature=99),
            line("unknown field", frobnicate=1),
            line("no model", model=None),
            line("other model", model="nobody"),
            line("stream", stream=True),
            line("two prompts", ["ab", "cd"]),
        ]
    )
    batch = work(batch, make_runner(manager))
    assert batch.state == "completed"
    assert (batch.num_completed, batch.num_failed) == (2, 5)
    output = {item["custom_id"]: item for item in contents(batch.output_file_id)}
    assert [choice["text"] for choice in output["two prompts"]["response"]["body"]["choices"]] == ["ba", "dc"]
    errors = {item["custom_id"]: item["response"] for item in contents(batch.error_file_id)}
    assert set(output) == {"good", "two prompts"}
    assert {name: item["status_code"] for name, item in errors.items()} == {
        "hot": 400, "unknown field": 400, "no model": 400, "other model": 404, "stream": 400,
    }  # fmt: skip
    assert errors["hot"]["body"]["error"]["param"] == "temperature"
    assert errors["other model"]["body"]["error"]["code"] == "model_not_found"
