"""The terminal of a chat: lines that are typed, and text that is written as it comes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from models_registry.detection.printable import visible

QUOTES = '"""'
DIM, RED, RESET = "\x1b[2m", "\x1b[31m", "\x1b[0m"
MAX_INPUT_BYTES = 16 << 20


def is_open(text: str) -> bool:
    """Whether a typed text has begun with three quotes and not ended with them."""
    rest = text.lstrip()
    return rest.startswith(QUOTES) and (len(rest) < 6 or not rest.rstrip().endswith(QUOTES))


def without_quotes(text: str) -> str:
    """Return a typed text without the quotes around it, if it has them."""
    stripped = text.strip()
    if stripped.startswith(QUOTES) and stripped.endswith(QUOTES) and len(stripped) >= 6:
        return stripped[3:-3].strip("\n")
    return text


class Screen:
    """Reads and writes a terminal."""

    def __init__(self, output: IO[str] | None = None) -> None:
        self._output = output or sys.stdout
        self._has_colour = self._output.isatty()
        self._style = ""
        self._words: Sequence[str] = ()
        self._session: PromptSession[str] | None = None

    def complete(self, words: Sequence[str]) -> None:
        """Set what Tab completes."""
        self._words = words

    def read(self) -> str:
        """Return what was typed until Enter.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._session is None:  # made only now: it looks for a terminal
            session: PromptSession[str] = PromptSession(
                history=InMemoryHistory(),
                completer=WordCompleter(list(self._words), sentence=True),
                complete_while_typing=False,
                key_bindings=_key_bindings(),
                multiline=Condition(lambda: is_open(session.default_buffer.text)),
                prompt_continuation="... ",
            )
            self._session = session
        return without_quotes(self._session.prompt(">>> "))

    def write(self, text: str, *, dim: bool = False) -> None:
        """Write a piece of an output at once; where no terminal is, what is dim goes to the error stream."""
        if dim and not self._has_colour:
            sys.stderr.write(visible(text))
            return
        style = DIM if dim else ""
        if style != self._style:
            self._output.write(style or RESET)
            self._style = style
        self._output.write(visible(text))
        if text.endswith("\n") and style:  # the prompt behind it has no style
            self._output.write(RESET)
            self._style = ""
        self._output.flush()

    def line(self, text: str = "", *, dim: bool = False) -> None:
        """Write a line."""
        self.write(f"{text}\n", dim=dim)

    def error(self, message: str) -> None:
        """Write an error as one line."""
        text = visible(" ".join(message.split()))
        self._style = ""
        self._output.write(f"{RED}error:{RESET} {text}\n" if self._has_colour else f"error: {text}\n")
        self._output.flush()


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
