"""Run ``blazr decode``: print the text of token ids."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inference.errors import InvalidRequest, InvalidTokenIds
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec


def run(arguments: argparse.Namespace) -> int:
    """Print the text, special tokens included."""
    tokenizer = load_tokenizer(vocabulary_spec(arguments.vocab))
    ids = _parse_ids(arguments.ids)
    tokenizer.check_token_ids(ids)
    sys.stdout.write(tokenizer.decode(ids, skip_special_tokens=False) + "\n")
    return 0


def vocabulary_spec(vocabulary: str) -> TokenizerSpec:
    """Return a TokenizerSpec for a built-in vocabulary's name or a .tiktoken file.

    Raises:
        InvalidRequest: The text is neither.
    """
    if vocabulary in VOCABULARIES:
        return TokenizerSpec("builtin", VOCABULARIES[vocabulary][1], name=vocabulary)
    path = Path(vocabulary).expanduser()
    if path.suffix == ".tiktoken" and path.is_file():
        with path.open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
        return TokenizerSpec("tiktoken", count, path=str(path.resolve()))
    raise InvalidRequest(
        f"vocabulary {vocabulary!r} is neither one of {', '.join(VOCABULARIES)} nor an existing .tiktoken file.",
        param="vocab",
    )


def _parse_ids(text: str) -> list[int]:
    ids: list[int] = []
    for part in text.replace(" ", ",").split(","):
        if part:
            if not part.isdecimal():
                raise InvalidTokenIds(f"--ids has {part[:40]!r}, which is not a token id (0 or more).", param="ids")
            ids.append(int(part))
    if not ids:
        raise InvalidTokenIds("--ids is empty; give token ids such as 1,2.", param="ids")
    return ids
