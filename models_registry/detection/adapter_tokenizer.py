"""Compare an adapter's tokenizer with its base's."""

from __future__ import annotations

from pathlib import Path

from inference.errors import UnsupportedFormat
from inference.text.tokenisation.sentencepiece_file import read_sentencepiece
from models_registry.detection.adapter_files import SENTENCEPIECE_FILE, TOKENIZER_FILE, AdapterFiles, advising
from models_registry.detection.json_file import read_object
from models_registry.detection.vocabulary import is_rank_file
from models_registry.detection.xlora_files import XLoraFiles

MAX_TOKENIZER_BYTES = 64 << 20


def comparable_file(path: str | None) -> Path | None:
    """Return a base's tokenizer by its path if adapters' are compared with it; None: it is of another format."""
    return None if path is None or not path.endswith((TOKENIZER_FILE, SENTENCEPIECE_FILE)) else Path(path)


def check_tokenizer(files: AdapterFiles | XLoraFiles, base: Path | None) -> None:
    """Refuse an adapter whose tokenizer gives tokens of the base other numbers.

    A tokenizer.json, or a vocab.json without one, is compared with a tokenizer.json, and a tokenizer.model with a
    tokenizer.model, if both are SentencePiece models: conversions between formats may number tokens anew.

    Args:
        base: The base's tokenizer.json or tokenizer.model; None: it has none, and nothing is compared.

    Raises:
        UnsupportedFormat: Names the first such token.
    """
    if base is None:
        return
    ours: dict[str, int] = {}
    for item in (files, *(files.adapters if isinstance(files, XLoraFiles) else ())):
        is_piece_model = base.name.endswith(SENTENCEPIECE_FILE)
        found = [path for path in item.tokenizers if (path.name == SENTENCEPIECE_FILE) == is_piece_model]
        # Ranks, as Llama 3's tokenizer.model has them, are of a third format.
        if not found or (is_piece_model and (is_rank_file(found[0]) or is_rank_file(base))):
            continue
        with advising():
            theirs = _token_ids(found[0])
        ours = ours or _token_ids(base)
        for token, number in theirs.items():
            if token in ours and ours[token] != number:
                raise UnsupportedFormat(
                    f"the adapter was trained with another tokenizer: {found[0].name} beside it gives the token "
                    f"{token[:40]!r} the number {number}, the base's gives it {ours[token]}; use the base that it was "
                    f"trained on{', ' + item.config.base_model if item.config.base_model else ''}.",
                    param="tokenizer",
                )


def _token_ids(path: Path) -> dict[str, int]:
    """Numbers of the tokens of one of ``TOKENIZER_FILES``."""
    if path.name.endswith(SENTENCEPIECE_FILE):
        pieces = read_sentencepiece(path).vocabulary.tokens
        return {piece: number for number, piece in enumerate(pieces) if piece}
    content = read_object(path, MAX_TOKENIZER_BYTES)
    found: dict[str, int] = {}
    if not path.name.endswith(TOKENIZER_FILE):  # vocab.json: numbers by token
        return {token: number for token, number in content.items() if isinstance(number, int)}
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
