"""Shapes of /v1/chat/completions: the role first, then the text, then the reason of the end."""

from __future__ import annotations

from tests.inference.dialects.openai.outputs.builders import delta, entry, taken

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def test_a_stream_opens_with_the_role_of_each_choice():
    found = taken("chat", CHAT | {"n": 2})
    opening = [choice for chunk in found.opening() for choice in chunk["choices"]]
    assert [choice["index"] for choice in opening] == [0, 1]
    assert all(choice["delta"]["role"] == "assistant" for choice in opening)


def test_the_stream_and_the_whole_say_the_same():
    events = [delta("Hel"), delta("lo", finish_reason="stop", stop_reason=None)]
    found = taken("chat", CHAT, *events)
    chunks = [chunk for item in events for chunk in found.chunks(0, item)]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    (choice,) = found.whole()["choices"]
    assert text == choice["message"]["content"] == "Hello"
    assert choice["message"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_logprobs_have_bytes_and_as_many_rivals_as_asked_for():
    item = delta("b", logprobs=[entry("b", 9, -0.2, ("c", 8, -0.9), ("d", 7, -1.5))])
    found = taken("chat", CHAT | {"logprobs": True, "top_logprobs": 2}, item)
    (content,) = found.whole()["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["logprob"], content["bytes"]) == ("b", -0.2, [98])
    assert [rival["token"] for rival in content["top_logprobs"]] == ["b", "c"]
