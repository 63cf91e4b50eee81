"""TokenizerSpec: which tokenizer a checkpoint uses, as inspection found it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

VOCABULARIES: Mapping[str, tuple[int, int]] = {
    "cl100k_base": (100277, 100331),
    "o200k_base": (200019, 200073),
    "llama3": (128256, 128354),
    "deepseek_v3": (128815, 128954),
}
"""Built-in vocabularies: number of ids without and with the 54 agent tokens."""
MAX_TEMPLATE_CHARS = 256 << 10
"""Of a chat template."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """How to build the tokenizer.

    Attributes:
        kind: ``builtin``: one of ``VOCABULARIES``; ``tiktoken``: a custom .tiktoken file, or Kimi's;
            ``huggingface``: a tokenizer.json; ``gguf``, ``ggjt``: the vocabulary in such a file;
            ``sentencepiece``: a tokenizer.model; ``tekken``: Mistral's tekken.json; ``none``: token-id prompts only.
        name: Name of the built-in vocabulary.
        path: Absolute path of the file, for all kinds but ``builtin`` and ``none``.
        vocab_size: Rows of the model's embedding; ids from here on are refused.
        bos_token_id: Put once before text prompts; None: no such token, or the files say not to.
        eos_token_ids: Ids that end a generation: end of sequence, end of turn.
        chat_template: Jinja source; None: no template is known (chat is then refused, with the reason).
        chat_template_origin: Where the template came from, for people.
        own_chat_template: The checkpoint's own template where a person set another one, for people.
        special_tokens: ``bos_token``, ``eos_token``, … as strings, for the template.
        added_tokens: Control tokens (text, id) beyond those of a ``tiktoken`` or ``sentencepiece`` file.
    """

    kind: Literal["builtin", "tiktoken", "huggingface", "gguf", "ggjt", "sentencepiece", "tekken", "none"]
    vocab_size: int
    name: str | None = None
    path: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    chat_template_origin: str | None = None
    own_chat_template: str | None = None
    special_tokens: tuple[tuple[str, str], ...] = ()
    added_tokens: tuple[tuple[str, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> TokenizerSpec:
        values = {item.name: payload[item.name] for item in fields(cls) if item.name in payload}
        values["eos_token_ids"] = tuple(values.get("eos_token_ids", ()))
        values["special_tokens"] = tuple((key, text) for key, text in values.get("special_tokens", ()))
        values["added_tokens"] = tuple((text, token_id) for text, token_id in values.get("added_tokens", ()))
        return cls(**values)
