"""The commands of a chat that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blazr_site.chat.backends import Backend
from blazr_site.chat.conversation import PARAMETERS, Conversation, conversation_path, load_conversation
from inference.errors import InvalidRequest

HELP = """\
/model NAME        another model, with the same conversation; /models lists them
/system TEXT       set the system prompt; without a text show it; /system "" takes it out
/set NAME VALUE    set a parameter: {parameters}; VALUE default: take it out
/show              model, system prompt, parameters, number of messages
/clear             forget the messages
/undo              forget the last message and its answer
/save FILE         write the conversation to a file; /load FILE reads one
/bye               end; so does Ctrl-D. Ctrl-C stops an answer
\"\"\" begins a text of several lines and ends it; Esc, Enter begins a new line"""


class SlashCommands:
    """Runs what is typed behind a slash on a conversation.

    Attributes:
        is_over: ``/bye`` was typed.
    """

    def __init__(self, conversation: Conversation, backend: Backend, show: Callable[[str], None]) -> None:
        self.is_over = False
        self._conversation = conversation
        self._backend = backend
        self._show = show
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help, "?": self._help, "model": self._model, "models": self._models, "system": self._system,
            "set": self._set, "show": self._show_all, "clear": self._clear, "undo": self._undo, "save": self._save,
            "load": self._load, "bye": self._bye, "exit": self._bye, "quit": self._bye,
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The commands, with their slash."""
        return [f"/{name}" for name in self._commands]

    def run(self, line: str) -> None:
        """Run a line that begins with a slash.

        Raises:
            InvalidRequest: There is no such command, or it can't be done.
            BlazrError: As the backend raises.
        """
        name, _, argument = line.removeprefix("/").partition(" ")
        command = self._commands.get(name.strip())
        if command is None:
            raise InvalidRequest(f"/{name[:40]} is no command; /help lists them. To send it, begin with a space.")
        command(argument.strip())

    def _help(self, argument: str) -> None:
        self._show(HELP.format(parameters=", ".join(PARAMETERS)))

    def _bye(self, argument: str) -> None:
        self.is_over = True

    def _models(self, argument: str) -> None:
        self._show("\n".join(self._backend.models()) or "no models")

    def _model(self, argument: str) -> None:
        if argument:
            self._conversation.model = self._backend.choose(argument)
        self._show(f"model {self._conversation.model}")

    def _system(self, argument: str) -> None:
        if argument:
            self._conversation.system = "" if argument in ('""', "''") else argument
        self._show(f"system: {self._conversation.system}" if self._conversation.system else "no system prompt")

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        if not name or not value.strip():
            raise InvalidRequest(
                f"/set takes a name and a value: /set temperature 0.7. Names: {', '.join(PARAMETERS)}."
            )
        self._conversation.set_parameter(name, value.strip())
        self._show(self._parameters())

    def _show_all(self, argument: str) -> None:
        self._show(f"model {self._conversation.model}, {self._backend.place}")
        self._system("")
        self._show(self._parameters())
        self._show(f"{len(self._conversation.messages)} messages")

    def _parameters(self) -> str:
        found = self._conversation.parameters
        return ", ".join(f"{name} {value}" for name, value in found.items()) or "parameters: the server's defaults"

    def _clear(self, argument: str) -> None:
        self._conversation.clear()
        self._show("the messages are forgotten")

    def _undo(self, argument: str) -> None:
        messages = self._conversation.messages
        while messages and messages.pop()["role"] != "user":
            pass
        self._show(f"{len(messages)} messages")

    def _save(self, argument: str) -> None:
        path = _file(argument, "save")
        self._conversation.save(path)
        self._show(f"{len(self._conversation.messages)} messages in {path}")

    def _load(self, argument: str) -> None:
        path = _file(argument, "load")
        loaded = load_conversation(path)
        self._conversation.system, self._conversation.parameters = loaded.system, loaded.parameters
        self._conversation.messages = loaded.messages
        other = "" if loaded.model == self._conversation.model else f"; it was with {loaded.model}"
        self._show(f"{len(loaded.messages)} messages from {path}{other}")


def _file(argument: str, name: str) -> Path:
    if not argument:
        raise InvalidRequest(f"/{name} takes the name of a file.")
    return conversation_path(argument)
