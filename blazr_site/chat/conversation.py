"""Conversation: messages, system prompt and sampling parameters of a chat, and their file."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from inference.errors import InvalidRequest
from inference.values.chat_options import ReasoningEffort
from inference.values.sampling_params import SamplingParams

VERSION = 1
MAX_FILE_BYTES = 16 << 20
EFFORTS: tuple[str, ...] = get_args(ReasoningEffort)
EFFORT = "reasoning_effort"
PARAMETERS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "max_tokens", "seed", "stop", "repetition_penalty",
    "presence_penalty", "frequency_penalty", EFFORT,
)  # fmt: skip
"""What ``/set`` changes: parameters of a chat completion."""
_ROLES = ("user", "assistant")


@dataclass(slots=True)
class Conversation:
    """One chat.

    Attributes:
        model: Name of the model, or what it was loaded from.
        system: System prompt; empty: there is none.
        parameters: Parameters that differ from the defaults, by name.
        messages: Of user and assistant, in turns, with ``role`` and ``content``.
    """

    model: str
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def request_messages(self) -> list[dict[str, str]]:
        """Return the messages of a request, the system's first."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self.messages.append({"role": role, "content": content})

    def clear(self) -> None:
        """Forget the messages; system prompt and parameters stay."""
        self.messages.clear()

    def set_parameter(self, name: str, text: str) -> None:
        """Set a parameter from what was typed; ``default`` takes it out.

        Raises:
            InvalidRequest: There is no such parameter, or the value is out of its range.
        """
        if name not in PARAMETERS:
            raise InvalidRequest(f"/set {name[:40]}: there is no such parameter; known are {', '.join(PARAMETERS)}.")
        if text == "default":
            self.parameters.pop(name, None)
            return
        self.parameters[name] = _parameter(name, text)

    def save(self, path: Path) -> None:
        """Write the conversation to a file, which only its owner can read; an earlier file is replaced.

        Raises:
            InvalidRequest: It can't be written.
        """
        payload = {
            "version": VERSION,
            "model": self.model,
            "system": self.system,
            "parameters": self.parameters,
            "messages": self.messages,
        }
        text = json.dumps(payload, ensure_ascii=False, indent=2) + "\n"
        draft: str | None = None
        try:
            if path.exists() and not path.is_file():
                raise InvalidRequest(f"/save: {path} is no file; choose another name.")
            descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            Path(draft).replace(path)
        except OSError as error:
            if draft is not None:
                Path(draft).unlink(missing_ok=True)
            raise InvalidRequest(f"/save: {path} can't be written: {error.strerror}.") from None


def conversation_path(name: str) -> Path:
    """Return the path that a person has typed.

    Raises:
        InvalidRequest: It can't be one.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~NAME without such an account
        raise InvalidRequest(f"{name[:200]!r} is no path: {error}") from None
    if "\0" in name:
        raise InvalidRequest(f"{name[:200]!r} is no path; it has a character that none can have.")
    return path


def load_conversation(path: Path) -> Conversation:
    """Read what ``save`` has written.

    Raises:
        InvalidRequest: The file can't be read, or holds no conversation.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"/load: {path} can't be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"/load: {path} has more than {MAX_FILE_BYTES >> 20} MiB; it is no conversation.")
    try:
        payload = json.loads(content)
        return _from_payload(payload)
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
        raise InvalidRequest(f"/load: {path} holds no conversation of /save.") from None


def _from_payload(payload: Any) -> Conversation:
    if payload["version"] != VERSION:
        raise ValueError
    messages = [{"role": item["role"], "content": item["content"]} for item in payload["messages"]]
    texts = [payload["model"], payload["system"], *(item["content"] for item in messages)]
    if not all(isinstance(text, str) for text in texts) or any(item["role"] not in _ROLES for item in messages):
        raise ValueError
    found = Conversation(payload["model"], payload["system"], {}, messages)
    for name, value in payload["parameters"].items():
        found.set_parameter(name, json.dumps(value))
    return found


def _parameter(name: str, text: str) -> Any:
    if name == EFFORT:
        effort = text.strip('"')
        if effort not in EFFORTS:
            raise InvalidRequest(f"/set {name} is {effort[:40]!r}; it must be {', '.join(EFFORTS)}.", param=name)
        return effort
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if name == "stop" and not isinstance(value, list):
        value = [value if isinstance(value, str) else text]
    params = SamplingParams.from_dict({name: value})
    found = getattr(params, name)
    return list(found) if isinstance(found, tuple) else found
