"""Vocabulary: the tokens of a file and how text becomes them, whatever format the file has.

Read from GGUF files, SentencePiece models and ``tekken.json``. Plain values without a library; what encodes with it is
``inference.text.tokenisation.children.vocabulary``. Standard library only, besides the errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.decoding import byte_alphabet

MAX_TOKENS = 1 << 21
MAX_TOKEN_BYTES = 1 << 12
SPACE = "▁"
"""What SentencePiece writes for a space (U+2581)."""

_ALPHABET = byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_CONTROL_TEXT = re.compile(
    r"<\|[^|<>]{1,64}\|>|<｜[^｜<>]{1,64}｜>|</?s>|\[/?[A-Z_]{2,64}\]"
    r"|<\|[a-z_]{1,64}>|<[a-z_]{1,64}\|>"
    r"|<(?:bos|eos|pad|unk|mask|eot|eom|start_of_turn|end_of_turn)>"
)


class TokenType(IntEnum):
    """Kinds of tokens, with the numbers of GGUF and SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS = frozenset(TokenType)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id and the algorithm that makes them of a text.

    Attributes:
        name: Of the file, for errors.
        algorithm: ``byte_bpe``: merges of bytes, written in GPT-2's alphabet; ``char_bpe``: merges of characters, of
            tokens in SentencePiece's spelling (Gemma 4); ``scored_bpe``: SentencePiece's BPE, which merges the pair
            whose token has the highest score; ``unigram``: SentencePiece's other model, the best sum of scores;
            ``ranks``: merges of bytes by the ranks of the results, as tiktoken has them.
        tokens: As the file writes them; of ``ranks``, in the alphabet of ``byte_bpe``.
        types: ``TokenType`` of each.
        scores: Of each, for ``scored_bpe`` and ``unigram``.
        merges: Of ``byte_bpe`` and ``char_bpe``, the first comes first.
        splits: Regular expressions that cut a text before ``byte_bpe`` and ``ranks``, one after the other.
        whole_words_first: A cut part that is a token is that token, whatever the merges say.
        space_prefix: A text gets a space in front, also behind a control token.
        collapse_spaces: Runs of spaces are one, and those at the ends none.
        normaliser: SentencePiece's compiled table of replacements; empty: none.
        unknown_id: Stands for what has no token; None: text with such a part is refused.
    """

    name: str
    algorithm: Literal["byte_bpe", "char_bpe", "scored_bpe", "unigram", "ranks"]
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    splits: tuple[str, ...] = ()
    whole_words_first: bool = False
    space_prefix: bool = False
    collapse_spaces: bool = False
    normaliser: bytes = b""
    unknown_id: int | None = None

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not 1 <= count <= MAX_TOKENS:
            self._fail(f"has {count} tokens; 1 to {MAX_TOKENS} are read")
        if len(self.types) != count:
            self._fail(f"has {count} tokens and {len(self.types)} types of tokens; convert the model again")
        odd = next((kind for kind in self.types if kind not in _KINDS), None)
        if odd is not None:
            self._fail(
                f"has a token of the type {odd}; the types 1 to {max(_KINDS)} are known; convert the model again"
            )
        if self.algorithm in ("scored_bpe", "unigram") and len(self.scores) != count:
            self._fail(f"has {count} tokens and {len(self.scores)} scores; convert the model again")
        if self.unknown_id is not None and not 0 <= self.unknown_id < count:
            self._fail(f"has the id {self.unknown_id} for unknown text, and {count} tokens")
        longest = max(map(len, self.tokens))
        if longest > MAX_TOKEN_BYTES:
            self._fail(f"has a token of {longest} characters; the limit is {MAX_TOKEN_BYTES}")

    @property
    def is_sentencepiece(self) -> bool:
        """Whether tokens have ``▁`` for spaces, and tokens of bytes are apart."""
        return self.algorithm in ("char_bpe", "scored_bpe", "unigram")

    def byte_ids(self) -> dict[int, int]:
        """Ids of the tokens that stand for one byte, by byte; of SentencePiece, those that are there for it alone."""
        found: dict[int, int] = {}
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if self.is_sentencepiece:
                match = _BYTE_TOKEN.match(token) if kind == TokenType.BYTE else None
                if match is not None:
                    found.setdefault(int(match[1], 16), token_id)
            elif len(token) == 1 and token in _ALPHABET and kind == TokenType.NORMAL:
                found.setdefault(_ALPHABET[token], token_id)
        return found

    def token_bytes(self) -> list[bytes | None]:
        """Bytes that each token adds to a text; empty for control tokens, None for unused ones."""
        found: list[bytes | None] = []
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind == TokenType.UNUSED:
                found.append(None)
            elif kind in (TokenType.CONTROL, TokenType.UNKNOWN):
                found.append(b"")
            elif kind == TokenType.BYTE and (match := _BYTE_TOKEN.match(token)):
                found.append(bytes([int(match[1], 16)]))
            elif self.is_sentencepiece:
                found.append(token.replace(SPACE, " ").encode())
            elif kind == TokenType.USER_DEFINED:
                found.append(token.encode())
            else:
                found.append(from_alphabet(token))
        return found

    def control_tokens(self) -> dict[str, int]:
        """Ids of the control tokens by text. Of two with one text, the first."""
        found: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN) and token:
                found.setdefault(token, token_id)
        return found

    def user_tokens(self) -> dict[str, int]:
        """Ids of the tokens that are cut out of every text before anything else, by their text."""
        found: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind == TokenType.USER_DEFINED and token:
                found.setdefault(token, token_id)
        return found

    def unknown_merges(self) -> list[tuple[str, str]]:
        """Merges that nothing can come of: a part of them, or what they make, is no token."""
        known = frozenset(self.tokens)
        return [pair for pair in self.merges if not (pair[0] in known and pair[1] in known and "".join(pair) in known)]

    def _fail(self, problem: str) -> None:
        raise CorruptCheckpoint(f"{self.name} {problem}.", param=self.name)


def control_types(tokens: tuple[str, ...], types: tuple[int, ...], named: frozenset[int]) -> tuple[int, ...]:
    """Return the types with every token that controls a chat as a control token.

    Converters have written some of them as ordinary or user-defined tokens; text of a user would become them.

    Args:
        named: Ids that the file names as an end or a beginning.
    """
    found = list(types)
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED) and (
            token_id in named or _CONTROL_TEXT.fullmatch(token) is not None
        ):
            found[token_id] = TokenType.CONTROL
    return tuple(found)


def from_alphabet(token: str) -> bytes:
    """Bytes of a token in GPT-2's alphabet; a token with other characters is written as it reads."""
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:
        return token.encode()
