"""Read the tokenizer's other files: control tokens and their ids, BOS and EOS, the chat template.

Reads ``tokenizer_config.json``, ``special_tokens_map.json``, ``generation_config.json``, ``tokenizer.json`` and the
``chat_template.*`` files within limits; loads no tokenizer and renders no template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS
from models_registry.detection.directory import CheckpointDirectory
from models_registry.detection.json_file import read_object, read_text
from models_registry.detection.printable import printable

MAX_TOKENIZER_BYTES = 32 << 20
MAX_TOKENIZER_CONFIG_BYTES = 8 << 20
MAX_ADDED_TOKENS = 100_000
MAX_TOKEN_CHARS = 512

TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Contents of the side files; an empty mapping where a file isn't there.

    Attributes:
        added_tokens: Control tokens by text, from ``tokenizer.json`` and ``tokenizer_config.json``.
        special_tokens: ``bos_token``, ``eos_token``, … as texts.
        bos_by_processor: The id that the post-processor of ``tokenizer.json`` puts in front; None: none.
        num_ids: Ids that ``tokenizer.json`` uses, counted from 0; 0: there is no such file.
    """

    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    added_tokens: Mapping[str, int]
    special_tokens: Mapping[str, str]
    bos_by_processor: int | None
    num_ids: int = 0


def read_tokenizer_files(resolved: CheckpointDirectory) -> TokenizerFiles:
    """Read them all.

    Raises:
        CorruptCheckpoint: One of them is too large, or not a JSON object.
    """
    config = read_tokenizer_config(resolved)
    generation = _object(resolved, "generation_config.json")
    token_map = _object(resolved, "special_tokens_map.json", MAX_TOKENIZER_CONFIG_BYTES)
    tokenizer = _object(resolved, "tokenizer.json", MAX_TOKENIZER_BYTES)
    added: dict[str, int] = {}
    for text, token_id in (*_added_in_tokenizer(tokenizer), *_added_in_config(config)):
        if len(text) <= MAX_TOKEN_CHARS and len(added) < MAX_ADDED_TOKENS:
            added.setdefault(text, token_id)
    special: dict[str, str] = {}
    for source in (token_map, config):
        special |= {key: found for key in TOKEN_KEYS if (found := token_text(source.get(key))) is not None}
    vocabulary = tokenizer.get("model", {}).get("vocab") if isinstance(tokenizer.get("model"), dict) else None
    if isinstance(vocabulary, dict):
        # A control token may be an ordinary entry of the vocabulary (older Llama files).
        for text in special.values():
            if _is_id(vocabulary.get(text)):
                added.setdefault(text, vocabulary[text])
    ids = [token_id for _, token_id in _added_in_tokenizer(tokenizer)]
    ids += filter(_is_id, vocabulary.values()) if isinstance(vocabulary, dict) else ()
    num_ids = max(max(ids, default=-1) + 1, len(vocabulary) if isinstance(vocabulary, list) else 0)
    bos = _bos_of_processor(tokenizer.get("post_processor"))
    return TokenizerFiles(config, generation, added, special, bos, num_ids)


def read_tokenizer_config(resolved: CheckpointDirectory) -> dict[str, Any]:
    """Return ``tokenizer_config.json``; empty if there is none.

    Raises:
        CorruptCheckpoint: It is too large, or not a JSON object.
    """
    return _object(resolved, "tokenizer_config.json", MAX_TOKENIZER_CONFIG_BYTES)


def find_chat_template(resolved: CheckpointDirectory, tokenizer_config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Source and origin of the model's chat template; None: it has none.

    ``chat_template.jinja`` comes first, as in transformers; of a list of named templates the one called
    ``default``, else the first.

    Raises:
        CorruptCheckpoint: It is longer than ``MAX_TEMPLATE_CHARS``.
    """
    path = resolved.find("chat_template.jinja")
    if path is not None:
        return bounded_template(read_text(path, MAX_TEMPLATE_CHARS), path.name), path.name
    in_file = _object(resolved, "chat_template.json").get("chat_template")
    for value, origin in (
        (in_file, "chat_template.json"),
        (tokenizer_config.get("chat_template"), "tokenizer_config.json"),
    ):
        if isinstance(value, str) and value.strip():
            return bounded_template(value, origin), origin
        if isinstance(value, list):
            named = [
                (str(item.get("name")), item["template"])
                for item in value
                if isinstance(item, dict) and isinstance(item.get("template"), str)
            ]
            if named:
                name, template = next((item for item in named if item[0] == "default"), named[0])
                return bounded_template(template, origin), f"{origin} ({printable(name[:40])})"
    return None


def token_text(value: Any) -> str | None:
    """A token that is written as text, or as an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TOKEN_CHARS else None


def token_ids(value: Any) -> list[int]:
    """Ids of a key that holds one id, a list of ids, or nothing."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values[:256] if _is_id(item)]


def _object(resolved: CheckpointDirectory, name: str, limit: int = 1 << 20) -> dict[str, Any]:
    path = resolved.find(name)
    return {} if path is None else read_object(path, limit)


def bounded_template(template: str, origin: str) -> str:
    """Return the chat template.

    Raises:
        CorruptCheckpoint: It is longer than ``MAX_TEMPLATE_CHARS``.
    """
    if len(template) > MAX_TEMPLATE_CHARS:
        raise CorruptCheckpoint(
            f"{origin}: the chat template has {len(template)} characters; the limit is {MAX_TEMPLATE_CHARS}.",
            param=origin,
        )
    return template


def _added_in_tokenizer(tokenizer: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    entries = tokenizer.get("added_tokens")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and _is_id(entry.get("id")):
            yield entry["content"], entry["id"]


def _added_in_config(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    entries = config.get("added_tokens_decoder")
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        text = token_text(entry)
        if text is not None and key.isascii() and key.isdigit() and len(key) < 10:
            yield text, int(key)


def _bos_of_processor(processor: Any) -> int | None:
    """The token that a template post-processor puts before a single text."""
    if not isinstance(processor, dict):
        return None
    inner = processor.get("processors")
    for part in inner if isinstance(inner, list) else [processor]:
        if not isinstance(part, dict) or part.get("type") != "TemplateProcessing":
            continue
        single, tokens = part.get("single"), part.get("special_tokens")
        first = single[0] if isinstance(single, list) and single else None
        token = first.get("SpecialToken") if isinstance(first, dict) else None
        name = token.get("id") if isinstance(token, dict) else None
        entry = tokens.get(name) if isinstance(tokens, dict) and isinstance(name, str) else None
        found = token_ids(entry.get("ids")) if isinstance(entry, dict) else []
        if found:
            return found[0]
    return None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
