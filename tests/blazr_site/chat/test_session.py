"""Turns: what stays in the conversation, whatever ends an answer."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from blazr_site.chat.conversation import Conversation
from blazr_site.chat.screen import Screen
from blazr_site.chat.session import ChatSession
from blazr_site.chat.slash_commands import SlashCommands
from inference.errors import InvalidRequest
from inference.llm.outputs import OutputDelta


class Script:
    place = "here"

    def __init__(self, *steps) -> None:
        self.steps = steps
        self.is_closed = False

    def stream(self, conversation) -> Iterator[OutputDelta]:
        try:
            for step in self.steps:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.is_closed = True


def session(*steps):
    chat, backend, output = Conversation("m"), Script(*steps), io.StringIO()
    screen = Screen(output)
    return ChatSession(chat, backend, screen, SlashCommands(chat, backend, screen.line)), chat, backend, output


USAGE = OutputDelta(usage={"completion_tokens": 9})


def test_an_answer_is_shown_and_kept_without_its_thinking(capsys):
    made, chat, backend, output = session(OutputDelta(reasoning="hm"), OutputDelta(text="yes"), USAGE)
    made.send(" Hi \n")
    assert chat.messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yes"}]
    assert output.getvalue() == "\n\nyes\n"
    assert backend.is_closed
    facts = capsys.readouterr().err
    assert "first token after" in facts and "9 tokens, " in facts and "tokens/s" in facts


def test_what_came_before_an_interrupt_stays(capsys):
    made, chat, backend, _ = session(OutputDelta(text="ye"), KeyboardInterrupt())
    made.send("Hi")
    assert chat.messages[-1] == {"role": "assistant", "content": "ye"}
    assert "stopped" in capsys.readouterr().err and backend.is_closed
    made, chat, *_ = session(KeyboardInterrupt())
    made.send("Hi")
    assert chat.messages == []


def test_a_message_that_failed_is_taken_out_again():
    made, chat, *_ = session(InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        made.send("Hi")
    assert chat.messages == []


def test_an_answer_that_was_cut_says_so(capsys):
    made, *_ = session(OutputDelta(text="a", finish_reason="length"))
    made.send("Hi")
    assert "cut at max_tokens" in capsys.readouterr().err
