"""Compare an adapter's tokenizer with its base's."""

from __future__ import annotations

from pathlib import Path

from inference.errors import UnsupportedFormat
from models_registry.detection.adapter_files import TOKENIZER_FILE, AdapterFiles, advising
from models_registry.detection.json_file import read_object
from models_registry.detection.xlora_files import XLoraFiles

MAX_TOKENIZER_BYTES = 64 << 20


def comparable_file(path: str | None) -> Path | None:
    """Return a base's tokenizer by its path if adapters' are compared with it; None: it is of another format."""
    return None if path is None or not path.endswith(TOKENIZER_FILE) else Path(path)


def check_tokenizer(files: AdapterFiles | XLoraFiles, base: Path | None) -> None:
    """Refuse an adapter whose tokenizer gives tokens of the base other numbers.

    Args:
        base: The base's tokenizer.json; None: it has none, and nothing is compared.

    Raises:
        UnsupportedFormat: Names the first such token.
    """
    if base is None:
        return
    ours: dict[str, int] = {}
    for item in (files, *(files.adapters if isinstance(files, XLoraFiles) else ())):
        if item.tokenizer is None:
            continue
        with advising():
            theirs = _token_ids(item.tokenizer)
        ours = ours or _token_ids(base)
        for token, number in theirs.items():
            if token in ours and ours[token] != number:
                raise UnsupportedFormat(
                    f"the adapter was trained with another tokenizer: {item.tokenizer.name} beside it gives the token "
                    f"{token[:40]!r} the number {number}, the base's gives it {ours[token]}; use the base that it was "
                    f"trained on{', ' + item.config.base_model if item.config.base_model else ''}.",
                    param="tokenizer",
                )


def _token_ids(path: Path) -> dict[str, int]:
    """Numbers of the tokens of a tokenizer.json."""
    content = read_object(path, MAX_TOKENIZER_BYTES)
    found: dict[str, int] = {}
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        found |= {token: number for token, number in vocabulary.items() if isinstance(number, int)}
    elif isinstance(vocabulary, list):  # Unigram's: tokens with their scores, in the order of their numbers
        pairs = [(item[0], number) for number, item in enumerate(vocabulary) if isinstance(item, list) and item]
        found |= {token: number for token, number in pairs if isinstance(token, str)}
    added = content.get("added_tokens")
    for item in added if isinstance(added, list) else ():
        if isinstance(item, dict) and isinstance(item.get("id"), int) and isinstance(item.get("content"), str):
            found[item["content"]] = item["id"]
    return found
