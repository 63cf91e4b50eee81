"""Items of a conversation: what a client sends, as it is listed and as the model gets it."""

from __future__ import annotations

import pytest

from inference.dialects.responses.items import chat_messages, items_read
from inference.errors import InvalidRequest


def test_a_text_is_one_message_of_the_user():
    assert chat_messages("Rules.", items_read("Hi")) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "Hi"},
    ]


def test_calls_go_with_the_message_before_them_and_outputs_answer_them():
    items = items_read(
        [
            {"role": "user", "content": "q"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
        ]
    )
    found = chat_messages(None, items)
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]
    assert found[1]["tool_calls"][0]["id"] == found[2]["tool_call_id"] == "c"


def test_codex_sends_developer_messages_behind_its_instructions():
    """Templates such as Qwen 3.5's refuse a system message that isn't the first."""
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]}
    user = {"role": "user", "content": "q"}
    found = chat_messages("Rules.", items_read([developer, developer, user, developer]))
    assert [message["role"] for message in found] == ["system", "user", "developer"]
    assert [part["text"] for part in found[0]["content"]] == ["Rules.", "<permissions>", "<permissions>"]
    assert chat_messages(None, items_read([developer, user]))[0] == {"role": "developer", "content": "<permissions>"}


def test_codex_sends_the_text_behind_a_call_in_front_of_its_output():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    text = {"role": "assistant", "content": [{"type": "output_text", "text": "Calling."}]}
    output = {"type": "function_call_output", "call_id": "c", "output": "2"}
    found = chat_messages(None, items_read([{"role": "user", "content": "q"}, call, text, output, text]))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert found[1]["content"] == "Calling."
    assert found[1]["tool_calls"][0]["id"] == "c"


@pytest.mark.parametrize(
    "item",
    [3, {"type": "nonsense"}, {"role": "robot", "content": "x"}, {"role": "user", "content": [{"type": "input_image"}]},
     {"type": "function_call", "call_id": "c"}, {"type": "item_reference", "id": "x"}],
)  # fmt: skip
def test_items_that_are_wrong_are_named_by_their_place(item):
    with pytest.raises(InvalidRequest) as caught:
        chat_messages(None, items_read([{"role": "user", "content": "x"}, item]))
    assert (caught.value.param or "").startswith("input.1")


def test_ai_sdk_finds_out_how_to_do_without_references():
    """With ``store`` at its default it replaces the items of earlier responses by references."""
    with pytest.raises(InvalidRequest, match="store: false") as caught:
        items_read([{"role": "user", "content": "q"}, {"type": "item_reference", "id": "msg_1"}])
    assert caught.value.param == "input.1.type"
