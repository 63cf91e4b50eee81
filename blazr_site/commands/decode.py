"""``blazr decode``: token ids to text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inference.errors import InvalidRequest, InvalidTokenIds
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec

HELP = "turn token ids into text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--ids", required=True, help='comma-separated token ids, e.g. "1,2"')
    parser.add_argument(
        "--vocab", default="llama3", help="cl100k_base, o200k_base, llama3 (default), deepseek_v3, or a .tiktoken file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the text, special tokens included."""
    from inference.text.tokenisation.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocabulary_spec(arguments.vocab))
    ids = _parse_ids(arguments.ids)
    tokenizer.check_token_ids(ids)
    sys.stdout.write(tokenizer.decode(ids, skip_special_tokens=False) + "\n")
    return 0


def vocabulary_spec(vocabulary: str) -> TokenizerSpec:
    """A TokenizerSpec for a built-in vocabulary's name or a .tiktoken file.

    Raises:
        InvalidRequest: Neither.
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
