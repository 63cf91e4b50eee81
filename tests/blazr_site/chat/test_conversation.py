"""A conversation: parameters as they are typed, and its file."""

from __future__ import annotations

import json
import stat

import pytest

from blazr_site.chat.conversation import Conversation, conversation_path, load_conversation
from inference.errors import BlazrError, InvalidRequest


def test_parameters_are_read_as_they_are_typed():
    chat = Conversation("m")
    for name, text, value in (
        ("temperature", "0.5", 0.5), ("top_k", "40", 40), ("stop", "END", ["END"]), ("stop", '["a", "b"]', ["a", "b"]),
        ("stop", "12", ["12"]), ("reasoning_effort", "low", "low"), ("seed", "-3", -3),
    ):  # fmt: skip
        chat.set_parameter(name, text)
        assert chat.parameters[name] == value
    chat.set_parameter("seed", "default")
    assert "seed" not in chat.parameters


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("colour", "red", "no such parameter; known are temperature"),
        ("temperature", "9", "temperature is 9, it must be from 0 to 2"),
        ("temperature", "hot", "temperature must be a number"),
        ("reasoning_effort", "much", "it must be none, minimal"),
    ],
)
def test_wrong_parameters_are_refused(name, text, match):
    with pytest.raises(BlazrError, match=match):
        Conversation("m").set_parameter(name, text)


def test_a_conversation_comes_back_from_its_file(tmp_path):
    chat = Conversation("m", "Be brief.", {"temperature": 0.5, "stop": ["x"], "reasoning_effort": "low"})
    chat.add("user", "Hi 🙂")
    chat.add("assistant", "Hello")
    path = tmp_path / "a.json"
    path.write_text("older")
    chat.save(path)
    assert load_conversation(path) == chat
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert chat.request_messages()[0] == {"role": "system", "content": "Be brief."}
    chat.clear()
    assert (chat.messages, chat.system) == ([], "Be brief.")


def test_what_is_no_conversation_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(InvalidRequest, match="can't be written"):
        Conversation("m").save(tmp_path / "no" / "a.json")
    with pytest.raises(InvalidRequest, match="is no file"):
        Conversation("m").save(tmp_path)
    assert not list(tmp_path.iterdir())
    path = tmp_path / "a.json"
    with pytest.raises(InvalidRequest, match="can't be read"):
        load_conversation(path)
    good = {"version": 1, "model": "m", "system": "", "parameters": {}, "messages": []}
    for bad in (
        "", "[]", "{", "[" * 100_000, json.dumps(good | {"version": 2}), json.dumps(good | {"model": 3}),
        json.dumps(good | {"messages": [{"role": "tool", "content": ""}]}), json.dumps(good | {"messages": 5}),
        json.dumps(good | {"parameters": [1]}), json.dumps(good | {"messages": [5]}),
    ):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(InvalidRequest, match="holds no conversation"):
            load_conversation(path)
    path.write_text(json.dumps(good | {"parameters": {"temperature": 7}}))
    with pytest.raises(BlazrError, match="temperature is 7"):
        load_conversation(path)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/a.json", "a\0b"])
def test_what_is_no_path_is_refused(name):
    with pytest.raises(InvalidRequest, match="is no path"):
        conversation_path(name)
