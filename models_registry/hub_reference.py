"""Name a model of the hub: ``ORG/NAME``; one of its GGUF files as ``ORG/NAME:TAG`` or ``ORG/NAME:FILE.gguf``.

The notation is that of llama.cpp's ``-hf`` and of Ollama. A tag is the quantisation in a file's name, such as
``Q4_K_M``, whatever its case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from inference.errors import InvalidRequest

MAX_REFERENCE_CHARS = 200
"""Of a whole reference, as rows of pulls keep it."""
GGUF_SUFFIX = ".gguf"
LATEST = "latest"
"""What clients of Ollama put in a tag's place; it names no file."""
_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_FILE = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9 ._,+=@()\[\]-]*(/[A-Za-z0-9_(\[][A-Za-z0-9 ._,+=@()\[\]-]*){0,3}\Z")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository of the hub, and which of its models is meant.

    Attributes:
        repo_id: ``ORG/NAME``.
        choice: A tag in capitals, or a GGUF file's path; empty: left to the repository.
    """

    repo_id: str
    choice: str = ""

    def __str__(self) -> str:
        return f"{self.repo_id}:{self.choice}" if self.choice else self.repo_id

    @property
    def names_file(self) -> bool:
        """Whether the choice is a file's path."""
        return is_gguf(self.choice)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``ORG/NAME``, ``ORG/NAME:TAG`` or ``ORG/NAME:FILE.gguf``.

        Raises:
            InvalidRequest: The text is none of them, or too long.
        """
        repo_id, colon, choice = text.partition(":")
        if not _REPO_ID.match(repo_id):
            raise InvalidRequest(
                f"{text[:80]!r} is not a hub id; they look like ORG/NAME, ORG/NAME:TAG or ORG/NAME:FILE.gguf.",
                param="model",
            )
        if len(text) > MAX_REFERENCE_CHARS:
            raise InvalidRequest(
                f"{text[:80]!r}… has {len(text)} characters; the limit is {MAX_REFERENCE_CHARS}. Name a GGUF file by "
                "its tag.",
                param="model",
            )
        if colon and not choice:
            raise InvalidRequest(
                f"{text[:80]!r} has nothing behind its colon; name a tag such as Q4_K_M or a .gguf file there.",
                param="model",
            )
        if choice.lower() == LATEST:
            choice = ""
        if choice and not (is_plain_file(choice) if is_gguf(choice) else _TAG.match(choice)):
            raise InvalidRequest(
                f"{choice[:80]!r} behind {repo_id}: is neither a tag such as Q4_K_M nor the name of a .gguf file.",
                param="model",
            )
        return cls(repo_id, choice if is_gguf(choice) else choice.upper())


def is_hub_reference(text: str) -> bool:
    """Whether ``text`` is a reference with an owner: ``ORG/NAME``, with or without a choice."""
    try:
        return "/" in HubReference.parse(text).repo_id
    except InvalidRequest:
        return False


def is_gguf(name: str) -> bool:
    """Whether a file of this name is a GGUF file by its name."""
    return name.lower().endswith(GGUF_SUFFIX)


def is_plain_file(path: str) -> bool:
    """Whether a path of a repository leads nowhere else, and has no odd characters."""
    return len(path) <= MAX_REFERENCE_CHARS and _FILE.match(path) is not None and ".." not in path
