"""Vocabularies in ``.tiktoken`` files, and Kimi's ``tiktoken.model``: lines of a base64 token and its rank.

Sources of ``PUBLISHED_FILES``: tokenization_kimi.py of https://huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct,
tokenization_hy.py of https://huggingface.co/tencent/Hunyuan-7B-Instruct.

Format: https://github.com/openai/tiktoken/blob/main/tiktoken/load.py. Two traps are caught here: files that
hold GPT-2's printable stand-ins for bytes (``Ġthe``) in place of the bytes, which load and then encode
nonsense; and files without some of the 256 single bytes, with which text would vanish.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.pre_tokenisers import PRE_TOKENISERS

MAX_RANK = 1 << 23
KIMI_FILE = "tiktoken.model"
"""What Moonshot's checkpoints call it: Moonlight, Kimi Linear, Kimi K2."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """How the code that comes with a published file uses it. None of them puts a BOS token before a text.

    Attributes:
        pre_tokeniser: The expression that cuts texts, a name of ``PRE_TOKENISERS``.
        control_tokens: Texts of those whose ids follow on the file's; empty: other files name them.
        is_renumbered: A token's id is the number of different tokens before it, whatever the file states.
        is_normalised: Texts are brought into Unicode's form NFC first.
    """

    pre_tokeniser: str
    control_tokens: tuple[str, ...] = ()
    is_renumbered: bool = False
    is_normalised: bool = False

    @property
    def pattern(self) -> str:
        """The regular expression by which texts are cut."""
        (pattern,) = PRE_TOKENISERS[self.pre_tokeniser].splits
        return pattern


_HUNYUAN_TOKENS = ("endoftext", "startoftext", "bos", "eos", "pad", *(f"extra_{number}" for number in range(205)))
PUBLISHED_FILES: Mapping[str, PublishedFile] = {
    KIMI_FILE: PublishedFile("kimi-k2"),
    "hy.tiktoken": PublishedFile("hunyuan", tuple(f"<|{name}|>" for name in _HUNYUAN_TOKENS), True, True),
}


def control_tokens(path: Path, max_bytes: int) -> dict[str, int]:
    """Return the control tokens that the code of a published file puts behind its tokens, with their ids.

    Raises:
        CorruptCheckpoint: As ``read_ranks``.
    """
    published = PUBLISHED_FILES.get(path.name)
    if published is None or not published.control_tokens:
        return {}
    first = len(read_ranks(path, max_bytes))
    return {text: first + number for number, text in enumerate(published.control_tokens)}


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
    published = PUBLISHED_FILES.get(path.name)
    is_renumbered = published is not None and published.is_renumbered
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        token, rank = _read_line(line, number, path.name)
        if is_renumbered:
            ranks.setdefault(token, len(ranks))
            continue
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
