"""Read Mistral's ``tekken.json``: ranks of byte strings, control tokens before them, an expression that cuts the text.

Format: https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/tokens/tokenizers/tekken.py. The ids of
the control tokens come first; an ordinary token's id is its rank plus their number.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.vocabulary import MAX_TOKENS, TokenType, Vocabulary

MAX_FILE_BYTES = 32 << 20
MAX_PATTERN_CHARS = 4096
_OLDER_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""The first control tokens of files that list none."""
_NAMED = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>", "padding": "<pad>"}


@dataclass(frozen=True, slots=True)
class TekkenFile:
    """The vocabulary and the ids of its named tokens: ``bos``, ``eos``, ``unknown``, ``padding``."""

    vocabulary: Vocabulary
    ids: Mapping[str, int]


def read_tekken(path: Path) -> TekkenFile:
    """Read the file.

    Raises:
        CorruptCheckpoint: It breaks the format or a limit, or lacks a byte.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptCheckpoint(f"{path.name} is larger than the limit of {MAX_FILE_BYTES} bytes.", param=path.name)
    try:
        return _read(json.loads(data), path)
    except (KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
        raise CorruptCheckpoint(
            f"{path.name} is no tekken.json: {type(error).__name__} {str(error)[:80]}.", param=path.name
        ) from None


def _read(content: dict[str, Any], path: Path) -> TekkenFile:
    config = content["config"]
    pattern, size = config["pattern"], config["default_vocab_size"]
    num_special = config["default_num_special_tokens"]
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"pattern must be text of at most {MAX_PATTERN_CHARS} characters")
    for number in (size, num_special):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_TOKENS:
            raise ValueError(f"sizes must be from 1 to {MAX_TOKENS}")
    special = _specials(content.get("special_tokens"), num_special)
    ranks = [base64.b64decode(entry["token_bytes"], validate=True) for entry in content["vocab"][: size - num_special]]
    if len(ranks) != size - num_special:
        raise ValueError(f"vocab has {len(ranks)} tokens, {size - num_special} are stated")
    stated = [entry["rank"] for entry in content["vocab"][: len(ranks)]]
    if stated != list(range(len(ranks))):
        raise ValueError("the ranks of vocab are not 0, 1, 2, …")
    distinct = set(ranks)
    missing = [byte for byte in range(256) if bytes([byte]) not in distinct] if len(distinct) == len(ranks) else None
    if missing is None or missing:
        raise ValueError("vocab has a token twice" if missing is None else f"vocab lacks the byte 0x{missing[0]:02X}")
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    tokens = (*special, *("".join(alphabet[byte] for byte in token) for token in ranks))
    types = (TokenType.CONTROL,) * num_special + (TokenType.NORMAL,) * len(ranks)
    vocabulary = Vocabulary(path.name, "ranks", tokens, types, splits=(pattern,))
    return TekkenFile(vocabulary, {name: special.index(text) for name, text in _NAMED.items() if text in special})


def _specials(listed: Any, count: int) -> tuple[str, ...]:
    """Texts of the control tokens; those that aren't listed have names made of their ids."""
    found = [f"<SPECIAL_{number}>" for number in range(count)]
    if listed is None:
        found[: len(_OLDER_SPECIALS)] = _OLDER_SPECIALS[:count]
    for entry in listed or ():
        rank, text = entry["rank"], entry["token_str"]
        if not isinstance(text, str) or isinstance(rank, bool) or not 0 <= rank < count:
            raise ValueError(f"special_tokens has {str(entry)[:60]}, ids are below {count}")
        found[rank] = text
    return tuple(found)
