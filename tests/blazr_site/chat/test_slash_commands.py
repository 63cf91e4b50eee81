"""What is typed behind a slash."""

from __future__ import annotations

import pytest

from blazr_site.chat.conversation import Conversation
from blazr_site.chat.slash_commands import SlashCommands
from inference.errors import InvalidRequest


class Models:
    place = "here"

    def models(self):
        return ["one", "two"]

    def choose(self, model):
        if model not in self.models():
            raise InvalidRequest("no such model")
        return model


@pytest.fixture
def shown() -> list[str]:
    return []


@pytest.fixture
def commands(shown):
    return SlashCommands(Conversation("one"), Models(), shown.append)


def test_models_system_and_parameters(commands, shown, tmp_path):
    chat = commands._conversation
    for line in ("/models", "/model two", "/model", "/system Be brief.", "/system", "/set top_k 3", "/show"):
        commands.run(line)
    assert shown[:6] == ["one\ntwo", "model two", "model two", "system: Be brief.", "system: Be brief.", "top_k 3"]
    assert shown[6:] == ["model two, here", "system: Be brief.", "top_k 3", "0 messages"]
    commands.run('/system ""')
    assert (chat.model, chat.system, shown[-1]) == ("two", "", "no system prompt")
    with pytest.raises(InvalidRequest, match="no such model"):
        commands.run("/model three")
    assert chat.model == "two"


def test_messages_are_forgotten_taken_back_and_kept(commands, shown, tmp_path):
    chat = commands._conversation
    for role in ("user", "assistant", "user", "assistant"):
        chat.add(role, role)
    commands.run(f"/save {tmp_path / 'a b.json'}")
    commands.run("/undo")
    assert [item["role"] for item in chat.messages] == ["user", "assistant"]
    commands.run("/clear")
    commands.run("/undo")
    assert not chat.messages
    chat.model = "two"
    commands.run(f"/load {tmp_path / 'a b.json'}")
    assert len(chat.messages) == 4 and shown[-1].endswith("; it was with one")
    assert chat.model == "two"


def test_help_names_every_command_and_the_end_ends(commands, shown):
    commands.run("/help")
    for name in {name for name in commands.names if name not in ("/?", "/help", "/exit", "/quit")}:
        assert name in shown[0], name
    assert not commands.is_over
    commands.run("/bye")
    assert commands.is_over


@pytest.mark.parametrize("line", ["/nothing", "/set", "/set top_k", "/save", "/load", "/", "/etc/passwd is a file"])
def test_what_is_no_command_is_refused(commands, line):
    with pytest.raises(InvalidRequest):
        commands.run(line)
