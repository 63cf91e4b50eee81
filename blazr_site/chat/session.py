"""The turns of a chat: read a message, stream the answer, show its speed."""

from __future__ import annotations

import time
from contextlib import closing

from blazr_site.chat.backends import Backend
from blazr_site.chat.conversation import Conversation
from blazr_site.chat.screen import Screen
from blazr_site.chat.slash_commands import SlashCommands
from inference.errors import BlazrError


class ChatSession:
    """One chat in a terminal."""

    def __init__(self, conversation: Conversation, backend: Backend, screen: Screen, commands: SlashCommands) -> None:
        self._conversation = conversation
        self._backend = backend
        self._screen = screen
        self._commands = commands

    def run(self) -> None:
        """Take turns until Ctrl-D or ``/bye``."""
        self._screen.line(f"{self._conversation.model} ({self._backend.place}); /help lists the commands", dim=True)
        while not self._commands.is_over:
            try:
                text = self._screen.read()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._screen.line("Ctrl-D ends the chat.", dim=True)
                continue
            try:
                if text.startswith("/"):
                    self._commands.run(text)
                elif text.strip():
                    self.send(text)
            except BlazrError as error:
                self._screen.error(error.message)
            except KeyboardInterrupt:
                self._screen.line("stopped", dim=True)

    def send(self, text: str) -> None:
        """Send a message and write the answer as it comes.

        Ctrl-C ends the answer: what has come by then stays in the conversation. A message without any answer is taken
        out again.

        Raises:
            BlazrError: The answer failed.
        """
        self._conversation.add("user", text.strip())
        output = _Output(self._screen)
        try:
            with closing(self._backend.stream(self._conversation)) as deltas:  # type: ignore[type-var]
                for delta in deltas:
                    output.take(delta.text, delta.reasoning)
                    if delta.usage is not None:
                        output.num_tokens = delta.usage["completion_tokens"]
                    if delta.finish_reason == "length":
                        output.is_cut = True
        except KeyboardInterrupt:
            output.is_stopped = True
        finally:
            if output.text:
                self._conversation.add("assistant", output.text)
            else:
                self._conversation.messages.pop()
            output.end()


class _Output:
    """Writes one answer, and counts its time."""

    def __init__(self, screen: Screen) -> None:
        self.text = ""
        self.num_tokens = 0
        self.is_stopped = self.is_cut = False
        self._screen = screen
        self._started = time.monotonic()
        self._first_at: float | None = None
        self._is_thinking = False
        self._ends_with_line = True

    def take(self, text: str, reasoning: str) -> None:
        """Write more of it; thinking is dim and isn't sent again."""
        if self._first_at is None and (text or reasoning):
            self._first_at = time.monotonic()
        if reasoning:
            self._is_thinking = True
            self._write(reasoning, dim=True)
        if text:
            if self._is_thinking and not self.text:
                self._write("\n" if self._ends_with_line else "\n\n", dim=False)
            self.text += text
            self._write(text, dim=False)

    def end(self) -> None:
        """Write the line behind it."""
        if not self._ends_with_line:
            self._screen.line()
        facts = []
        if self.is_stopped:
            facts.append("stopped")
        if self.is_cut:
            facts.append("cut at max_tokens or the model's context")
        if self._first_at is not None:
            facts.append(f"first token after {self._first_at - self._started:.2f} s")
            seconds = time.monotonic() - self._first_at
            if self.num_tokens > 1 and seconds > 0:
                facts.append(f"{self.num_tokens} tokens, {(self.num_tokens - 1) / seconds:.1f} tokens/s")
        if facts:
            self._screen.line(", ".join(facts), dim=True)

    def _write(self, text: str, *, dim: bool) -> None:
        self._screen.write(text, dim=dim)
        self._ends_with_line = text.endswith("\n")
