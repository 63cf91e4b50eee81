"""Ollama's generations: lines, whole responses, tools."""

from __future__ import annotations

import json

import pytest

from tests.inference.api.ollama.test_views import MESSAGES
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import Reply, say
from tests.inference.rows import make_checkpoint


def test_the_stream_is_lines_of_json(http):
    response = http.post("/api/generate", json={"model": "tiny", "prompt": "Hi"})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert all(json.loads(item)["model"] == "tiny" for item in response.text.splitlines())


def test_an_empty_prompt_loads_and_unloads(ollama, http, worker):
    def nothing(reply: Reply):
        yield reply.start()
        yield reply.delta("", token_ids=[], finish_reason="length")
        yield reply.done()

    worker.script = nothing
    found = ollama.generate("tiny", "", keep_alive=60)
    assert (found.response, found.done_reason) == ("", "load")
    assert worker.messages[-1]["params"]["max_tokens"] == 0
    assert worker.messages[-1]["keep_alive_s"] == 60
    assert ollama.chat("tiny", []).done_reason == "load"
    wait_for(lambda: http.get("/api/ps").json()["models"])
    count = len(worker.messages)
    assert ollama.generate("tiny", keep_alive=0).done_reason == "unload"
    assert worker.messages[count]["keep_alive_s"] == 0
    make_checkpoint("absent")
    assert ollama.generate("absent", keep_alive=0).done_reason == "unload"
    assert len(worker.messages) == count + 1


def test_a_pinned_model_stays_and_the_response_says_so(ollama, http, worker):
    worker.pinned = True
    wait_for(lambda: http.get("/api/ps").json()["models"])
    wait_for(lambda: ollama.generate("tiny", keep_alive=0).done_reason == "load")
    worker.pinned = False
    wait_for(lambda: ollama.generate("tiny", keep_alive=0).done_reason == "unload")


@pytest.mark.parametrize("stream", [False, True])
def test_tools(ollama, worker, stream):
    from tests.inference.api.openai.test_views_tool_calls import TOOL_TEMPLATE, TWO_CALLS, WEATHER, pieces

    row = make_checkpoint("caller", template=TOOL_TEMPLATE)
    worker.checkpoint_ids.add(str(row.pk))
    worker.script = say(*pieces(TWO_CALLS))
    found = ollama.chat("caller", MESSAGES, tools=[WEATHER], stream=stream)
    lines = list(found) if stream else [found]
    assert "".join(item.message.content for item in lines) == "Let me look."
    calls = [call.function for item in lines for call in item.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [
        ("weather", {"city": "Köln"}),
        ("weather", {"city": "Bonn"}),
    ]
    assert lines[-1].done_reason == "stop"
    answered = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "x"}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "warm"},
    ]
    ollama.chat("caller", answered, tools=[WEATHER])
    sent = worker.messages[-1]["prompt"]["messages"]
    assert sent[-1]["content"] == "warm"
    assert sent[-1]["tool_call_id"] == sent[-2]["tool_calls"][0]["id"]
    assert "tools" in ollama.show("caller").capabilities
