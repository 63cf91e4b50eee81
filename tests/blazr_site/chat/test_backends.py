"""Models of a server and of this process."""

from __future__ import annotations

import threading

import pytest

from blazr_site.chat.backends import LocalModel, ServerModels
from blazr_site.chat.conversation import Conversation
from blazr_site.server_client import Server, ServerClient
from inference.errors import BlazrError, InvalidRequest, Unavailable
from inference.llm.llm import LLM
from tests.blazr_site.chat.fake_server import KEY, fake_server


def chat(model="one", **parameters):
    found = Conversation(model, "", parameters)
    found.add("user", "Hi")
    return found


def test_a_servers_models_and_deltas():
    with fake_server() as server:
        models = ServerModels(ServerClient(Server(server.url, KEY)))
        assert (models.choose(None), models.choose("two")) == ("one", "two")
        with pytest.raises(InvalidRequest, match="--local loads"):
            models.choose("three")
        server.reply({"reasoning_content": "hm"}, {"content": "yes"}, finish_reason="length")
        deltas = list(models.stream(chat(temperature=0.5)))
        assert [(delta.reasoning, delta.text, delta.finish_reason) for delta in deltas[:-1]] == [
            ("hm", "", None), ("", "yes", None), ("", "", "length"),
        ]  # fmt: skip
        assert deltas[-1].usage["completion_tokens"] == 3
        assert server.bodies[0]["temperature"] == 0.5
        models.close()


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 5},
        {"choices": [5]},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"content": {"a": 1}}}]},
        {"choices": [{"delta": {"reasoning_content": 5}}]},
        {"usage": {"completion_tokens": [1]}},
        {"usage": 5},
        [1, 2],
        "error",
        5,
        None,
    ],
)
def test_a_server_that_replies_with_anything_ends_no_chat(chunk):
    with fake_server() as server:
        models = ServerModels(ServerClient(Server(server.url, KEY)))
        server.chunks = [chunk]
        with pytest.raises(Unavailable, match="check --server"):
            list(models.stream(chat()))
        models.close()


@pytest.fixture(scope="module")
def local():
    loaded = []

    def load(name):
        if name == "broken":
            raise InvalidRequest("broken")
        loaded.append(LLM.from_pretrained(name, device="cpu", max_num_seqs=1, num_threads=1))
        return loaded[-1]

    found = LocalModel(load, "demo")
    found.loaded = loaded
    yield found
    found.close()


def test_a_model_of_this_process(local):
    assert local.choose(None) == local.choose("demo") == "demo"
    assert len(local.loaded) == 1
    deltas = list(local.stream(chat("demo", max_tokens=5, temperature=0.0)))
    assert deltas[-1].usage["completion_tokens"] == 5
    stream = local.stream(chat("demo", max_tokens=500))
    next(stream)
    stream.close()
    assert len(list(local.stream(chat("demo", max_tokens=2)))) >= 2  # the thread of the first has left the engine
    with pytest.raises(BlazrError, match="context"):
        list(local.stream(chat("demo", max_tokens=10**6)))
    assert [thread.name for thread in threading.enumerate()].count("chat") <= 1


def test_a_model_that_cannot_be_loaded_leaves_none(local):
    local.choose(None)
    with pytest.raises(InvalidRequest, match="broken"):
        local.choose("broken")
    with pytest.raises(InvalidRequest, match="no model is loaded"):
        list(local.stream(chat()))
    assert local.choose("demo") == "demo"
