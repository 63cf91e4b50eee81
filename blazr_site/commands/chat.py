"""Run ``blazr chat``: talk to a model in the terminal, on a running server or in this process."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from blazr_site.chat.backends import Backend, LocalModel, ServerModels
from blazr_site.chat.conversation import Conversation, conversation_path, load_conversation
from blazr_site.chat.screen import MAX_INPUT_BYTES, Screen
from blazr_site.chat.session import ChatSession
from blazr_site.chat.slash_commands import SlashCommands
from blazr_site.server_client import ServerClient, find_server
from blazr_site.settings.storage import BLAZR_DATA_DIR
from inference.demo.paths import SERVED_MODEL_NAME
from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from inference.llm.llm import LLM

MAX_LOCAL_SEQS = 1


def run(arguments: argparse.Namespace) -> int:
    """Take turns until Ctrl-D; with input that is no terminal, answer it and end."""
    backend = _backend(arguments)
    with closing(backend):
        conversation = Conversation(backend.choose(arguments.model), arguments.system or "")
        if arguments.load:
            loaded = load_conversation(conversation_path(arguments.load))
            conversation.messages, conversation.parameters = loaded.messages, loaded.parameters
            conversation.system = conversation.system or loaded.system
        for item in arguments.set:
            name, _, value = item.partition("=")
            conversation.set_parameter(name, value)
        screen = Screen()
        commands = SlashCommands(conversation, backend, lambda text: screen.line(text, dim=True))
        screen.complete(commands.names)
        session = ChatSession(conversation, backend, screen, commands)
        if sys.stdin.isatty():
            session.run()
        else:
            session.send(_piped())
    return 0


def _backend(arguments: argparse.Namespace) -> Backend:
    """Return the server's models if a server is named or runs here, else a model of this process."""
    server = None if arguments.local else find_server(arguments.server, arguments.key, BLAZR_DATA_DIR)
    if server is not None:
        return ServerModels(ServerClient(server))
    return LocalModel(lambda name: _load(arguments, name), SERVED_MODEL_NAME)


def _load(arguments: argparse.Namespace, name: str) -> LLM:
    # It imports torch, for which a chat with a server needn't wait.
    from blazr_site.commands.loading import inspect_to_run, load_to_run

    chosen = argparse.Namespace(**vars(arguments) | {"model": name})
    return load_to_run(chosen, inspect_to_run(chosen), max_num_seqs=MAX_LOCAL_SEQS)


def _piped() -> str:
    content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(content) > MAX_INPUT_BYTES:
        raise InvalidRequest(f"the input has more than {MAX_INPUT_BYTES >> 20} MiB; give a shorter text.")
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise InvalidRequest("the input is empty; type a message, or pipe one in.")
    return text
