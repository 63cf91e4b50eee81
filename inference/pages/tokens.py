"""Tokens for people: a text cut into them, a search in the vocabulary, and the rows of the embedding without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from inference.text.tokenisation.tokenizer import Tokenizer

MAX_TEXT_CHARS = 4000
"""Of a text that the page cuts: it is part of an address."""
MAX_TOKENS_SHOWN = 2000
MAX_RANGES_SHOWN = 40
MAX_QUERY_CHARS = 200
NUM_COLOURS = 5
KINDS = ("all", "control", "unused")
_MAX_SHOWN_CHARS = 80
_MAX_SHOWN_BYTES = 24
_CACHED_VOCABULARIES = 2
_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token as the page shows it.

    Attributes:
        text: What it adds to a text, see ``shown``.
        bytes: In hexadecimal, pairs with a space between; cut after some.
        kind: ``ordinary``, ``control`` or ``unused``.
        colour: A number below ``NUM_COLOURS``.
        breaks: Whether a line ends with it.
    """

    id: int
    text: str
    bytes: str
    kind: str
    colour: int = 0
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class CutText:
    """A text as tokens.

    Attributes:
        count: Of all tokens.
        num_chars, num_bytes: Of the text.
        tokens: The first ones.
    """

    count: int
    num_chars: int
    num_bytes: int
    tokens: list[Token]


@dataclass(frozen=True, slots=True)
class VocabularyPage:
    """Part of the tokens that match; ``count`` is of all of them."""

    count: int
    tokens: list[Token]


def cut(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool, parse_special: bool) -> CutText:
    """Cut a text into tokens.

    Raises:
        InvalidRequest: The tokenizer can't read the text.
        UnsupportedFeature: There is no tokenizer.
    """
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special, param="text")
    tokens = [
        _token(tokenizer, token_id, first=position == 0, colour=position % NUM_COLOURS)
        for position, token_id in enumerate(ids[:MAX_TOKENS_SHOWN])
    ]
    return CutText(len(ids), len(text), len(text.encode()), tokens)


def search(tokenizer: Tokenizer, query: str, kind: str, *, offset: int, limit: int) -> VocabularyPage:
    """Find tokens by a part of their text, whatever its case, or by id (``12``, ``12-20``); ids come first.

    Args:
        kind: One of ``KINDS``.
    """
    found: Sequence[int]
    if kind == "unused":
        found = sorted(tokenizer.invalid_token_ids)
    elif kind == "control":
        found = sorted(tokenizer.special_ids)
    else:
        found = range(tokenizer.vocab_size)
    query = query[:MAX_QUERY_CHARS]
    matching = found
    if query:
        ids, texts, words = _ids_in(query), _texts(tokenizer), query.lower()
        allowed = found if isinstance(found, range) else frozenset(found)
        named = [token_id for token_id in range(ids.start, min(ids.stop, tokenizer.vocab_size)) if token_id in allowed]
        matching = named + [token_id for token_id in found if words in texts[token_id] and token_id not in ids]
    return VocabularyPage(
        len(matching), [_token(tokenizer, token_id) for token_id in matching[offset : offset + limit]]
    )


def unused_ranges(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return the ids that stand for nothing as ranges (first, last)."""
    found: list[tuple[int, int]] = []
    for token_id in sorted(tokenizer.invalid_token_ids):
        if found and found[-1][1] == token_id - 1:
            found[-1] = (found[-1][0], token_id)
        else:
            found.append((token_id, token_id))
    return found


def shown(content: bytes) -> str:
    """Return a token's text with a sign or an escape for each character that can't be seen, and for broken UTF-8."""
    text = content.decode("utf-8", "backslashreplace")
    cropped = text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
    return "".join(_SIGNS.get(char, char if char.isprintable() else _escape(char)) for char in cropped)


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}"


def _token(tokenizer: Tokenizer, token_id: int, *, first: bool = False, colour: int = 0) -> Token:
    control = tokenizer.special_text(token_id)
    content = tokenizer.token_bytes(token_id, first=first) if control is None else control.encode()
    kind = "unused" if tokenizer.is_missing(token_id) else "ordinary" if control is None else "control"
    pairs = content[:_MAX_SHOWN_BYTES].hex(" ") + (" …" if len(content) > _MAX_SHOWN_BYTES else "")
    return Token(token_id, shown(content), pairs, kind, colour, content.endswith(b"\n"))


def _ids_in(query: str) -> range:
    """Return the ids that a query names; empty: it names none."""
    first, _, last = query.strip().partition("-")
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (first, last or first)):
        return range(0)
    return range(int(first), int(last or first) + 1)


@lru_cache(maxsize=_CACHED_VOCABULARIES)
def _texts(tokenizer: Tokenizer) -> list[str]:
    """Return what is searched in, by id; decoding goes on working after the tokenizer was closed."""
    return [
        (tokenizer.special_text(number) or tokenizer.token_bytes(number).decode("utf-8", "backslashreplace")).lower()
        for number in range(tokenizer.vocab_size)
    ]
