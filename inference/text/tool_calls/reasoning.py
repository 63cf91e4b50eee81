"""Where thinking begins and ends, token by token: for counting, and for the end of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReasoningSection:
    """Marks of a thinking section, and whether the prompt has opened one."""

    start: str
    end: str
    is_open: bool = False


class ReasoningCounter:
    """Counts the tokens of a text's thinking section, marks included.

    The section begins with the text (or in the prompt), as for ``OutputParser``.
    """

    def __init__(self, section: ReasoningSection) -> None:
        self.num_tokens = 0
        self._section = section
        self._is_open = section.is_open
        self._is_over = False
        self._num_seen = 0
        self._tail = ""  # may be the beginning of a mark

    def push(self, text: str) -> None:
        """Take the text that one token makes certain, empty or not."""
        if self._is_over:
            return
        self._num_seen += 1
        self._tail += text
        section = self._section
        if not self._is_open:
            self._tail = self._tail.lstrip()
            if self._tail.startswith(section.start):
                self._is_open = True
                self._tail = self._tail[len(section.start) :]
            elif not section.start.startswith(self._tail):
                self._is_over = True
        if self._is_open:
            self.num_tokens = self._num_seen
            self._is_over = section.end in self._tail
            self._tail = self._tail[1 - len(section.end) :]


def ends_in_section(prompt: Mapping[str, Any], text: str, start: str, end: str) -> bool:
    """Whether a rendered conversation ends inside a thinking section.

    Args:
        prompt: The request's ``PromptMessage``. Where its last message is continued, that one's text tells.
        text: The rendered prompt; a template opens a section with its last words.
    """
    if "messages" not in prompt:
        return False
    if prompt.get("continue_final_message"):
        content = prompt["messages"][-1].get("content") or ""
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        return bool(content.rfind(start) > content.rfind(end))
    return bool(prompt.get("add_generation_prompt", True)) and text.rstrip().endswith(start)
