"""Vocabularies in ``.tiktoken`` files, and Kimi's ``tiktoken.model``: lines of a base64 token and its rank.

Format: https://github.com/openai/tiktoken/blob/main/tiktoken/load.py. Two traps are caught here: files that
hold GPT-2's printable stand-ins for bytes (``Ġthe``) in place of the bytes, which load and then encode
nonsense; and files without some of the 256 single bytes, with which text would vanish.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.pre_tokenisers import PRE_TOKENISERS

MAX_RANK = 1 << 23
KIMI_FILE = "tiktoken.model"
"""What Moonshot's checkpoints call it (Moonlight, Kimi Linear, Kimi K2), whose code beside it has the expression."""


def pattern_of(path: Path) -> str:
    """Return the regular expression by which texts are cut before they are looked up: of no other file is it known,
    so that one counts as cut like OpenAI's newest (o200k_base)."""
    from splintr import O200K_BASE_PATTERN

    if path.name == KIMI_FILE:
        (expression,) = PRE_TOKENISERS["kimi-k2"].splits
        return expression
    return str(O200K_BASE_PATTERN)


def read_ranks(path: Path, max_bytes: int) -> dict[bytes, int]:
    """Tokens and their ids.

    Raises:
        CorruptCheckpoint: Too large, not in the format, an id twice, or a byte without a token.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise CorruptCheckpoint(f"{path.name} is larger than the limit of {max_bytes} bytes.", param=path.name)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        token, rank = _read_line(line, number, path.name)
        if token in ranks:
            raise CorruptCheckpoint(f"{path.name} line {number}: the token appears twice.", param=path.name)
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise CorruptCheckpoint(f"{path.name} gives one id to two tokens.", param=path.name)
    if _is_byte_level_text(ranks):
        ranks = _to_bytes(ranks, path.name)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise CorruptCheckpoint(
            f"{path.name} has no token for {len(missing)} of the 256 bytes (the first is 0x{missing[0]:02X}); "
            "text with them would be lost.",
            param=path.name,
        )
    return ranks


def _read_line(line: bytes, number: int, name: str) -> tuple[bytes, int]:
    parts = line.split()
    try:
        if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 8:
            raise ValueError
        token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        if not token or rank >= MAX_RANK:
            raise ValueError
    except (ValueError, binascii.Error):
        raise CorruptCheckpoint(
            f"{name} line {number} is not a base64 token and a rank below {MAX_RANK}.", param=name
        ) from None
    return token, rank


def _is_byte_level_text(ranks: dict[bytes, int]) -> bool:
    """No token has a space, and a tenth of them the stand-in for it (U+0120)."""
    if any(b" " in token for token in ranks):
        return False
    return sum("Ġ".encode() in token for token in ranks) * 10 >= len(ranks) or "Ġ".encode() in ranks


def _to_bytes(ranks: dict[bytes, int], name: str) -> dict[bytes, int]:
    alphabet = byte_alphabet()
    translated: dict[bytes, int] = {}
    for token, rank in ranks.items():
        try:
            plain = bytes(alphabet[char] for char in token.decode())
        except (KeyError, UnicodeDecodeError):
            continue  # a control token written in the file; it has no bytes of its own
        translated[plain] = rank
    if len(translated) < len(ranks) // 2:
        raise CorruptCheckpoint(f"{name} mixes byte-level text with raw bytes.", param=name)
    return translated
