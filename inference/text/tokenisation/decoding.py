"""TokenForms: the bytes that each token of a ``tokenizer.json`` adds to a text.

A HuggingFace decoder turns a list of tokens into text. All decoders in use act on one token at a time,
with an exception for the first one of a text; so each token has bytes of its own, and text can be put
together, cut and streamed as bytes. ``TokenForms`` reads the decoder's configuration and gives these bytes.

Rules after the ``decode_chain`` methods in
https://github.com/huggingface/tokenizers/tree/main/tokenizers/src/decoders (and pre_tokenizers/metaspace.rs),
with one difference: bytes that are not UTF-8 become one U+FFFD for each maximal broken part, as Unicode
recommends, also where the library's byte fallback writes one for each byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference.errors import UnsupportedFormat

MAX_STEPS = 64
MAX_GROWTH = 16
"""How many times longer than its stored form a token may become; the decoders in use make none longer."""
MAX_STRIPPED = 64

_Step = Callable[[str, bool], str | bytes]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character to byte.

    Bytes that print as themselves in Latin-1 stay; the other 68 follow from U+0100 in order.
    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py, ``bytes_to_unicode``.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + number): byte for number, byte in enumerate(others)})
    return alphabet


_ALPHABET = byte_alphabet()


class TokenForms:
    """Bytes of each token, first in a text or later in it.

    Args:
        tokens: Token strings by id, None where an id has no token.
        decoder: ``decoder`` of tokenizer.json; None: tokens joined by spaces.

    Attributes:
        lead: Character removed from the beginning of a whole text.
        max_lead: At most this many times.

    Raises:
        UnsupportedFormat: A decoder that can't be taken token by token.
    """

    def __init__(self, tokens: Sequence[str | None], decoder: Mapping[str, Any] | None) -> None:
        self._tokens = tokens
        self._steps: list[_Step] = []
        self._fused = False
        self._growth = 1
        self.lead = ""
        self.max_lead = 0
        if decoder is None:
            self._steps.append(lambda token, first: token if first else " " + token)
        else:
            self._add(decoder)
        self._forms: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})

    def token_bytes(self, token_id: int, first: bool) -> bytes:
        """Bytes of one token; empty where the id has none."""
        known = self._forms[first]
        form = known.get(token_id)
        if form is None:
            token = self._tokens[token_id]
            form = b"" if token is None else self._compute(token, first)
            known[token_id] = form
        return form

    def _compute(self, token: str, first: bool) -> bytes:
        for step in self._steps:
            value = step(token, first)
            if isinstance(value, bytes):
                return value
            token = value
        return token.encode("utf-8", "replace")

    def _add(self, decoder: Mapping[str, Any]) -> None:
        """Add the decoder's steps. The steps run in the worker for every token, so each has a bounded cost."""
        kind = decoder.get("type")
        if len(self._steps) == MAX_STEPS:
            raise self._unsupported(f"of more than {MAX_STEPS} steps")
        if kind == "Sequence":
            for part in decoder["decoders"]:
                self._add(part)
        elif kind == "Fuse":
            self._fused = True
        elif kind == "ByteLevel":
            self._steps.append(_byte_level)
        elif kind == "ByteFallback":
            self._steps.append(_byte_fallback)
        elif kind == "Metaspace":
            keep = decoder.get("prepend_scheme") == "never"
            self._steps.append(_metaspace(str(decoder["replacement"]), keep))
        elif kind == "WordPiece":
            self._steps.append(_word_piece(str(decoder["prefix"]), bool(decoder["cleanup"])))
        elif kind == "Replace":
            pattern = decoder["pattern"].get("String")
            if not isinstance(pattern, str) or not pattern or (self._fused and len(pattern) > 1):
                raise self._unsupported("Replace with a pattern that spans tokens")
            content = str(decoder["content"])
            self._growth *= max(1, -(-len(content) // len(pattern)))
            if self._growth > MAX_GROWTH:
                raise self._unsupported(f"that makes tokens more than {MAX_GROWTH} times longer")
            self._steps.append(_replace(pattern, content))
        elif kind == "Strip":
            self._add_strip(str(decoder["content"]), int(decoder["start"]), int(decoder["stop"]))
        else:
            raise self._unsupported(f"of type {str(kind)[:40]!r}")

    def _add_strip(self, content: str, start: int, stop: int) -> None:
        if max(start, stop) > MAX_STRIPPED:
            raise self._unsupported(f"Strip of {max(start, stop)} characters, at most {MAX_STRIPPED} are read,")
        if not self._fused:
            self._steps.append(_strip(content, start, stop))
        elif stop:
            raise self._unsupported("Strip at the end of the text")
        else:
            self.lead, self.max_lead = content, start

    @staticmethod
    def _unsupported(what: str) -> UnsupportedFormat:
        return UnsupportedFormat(
            f"tokenizer.json has a decoder {what}, which can't be streamed; "
            "supported are ByteLevel, ByteFallback, Metaspace, WordPiece, Replace, Fuse and Strip.",
            param="tokenizer.json",
        )


def _byte_level(token: str, first: bool) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:  # an added token, written as it reads
        return token.encode("utf-8", "replace")


def _byte_fallback(token: str, first: bool) -> str | bytes:
    match = _BYTE_TOKEN.match(token)
    return token if match is None else bytes([int(match[1], 16)])


def _metaspace(replacement: str, keep_first: bool) -> _Step:
    def step(token: str, first: bool) -> str:
        return token.replace(replacement, "" if first and not keep_first else " ")

    return step


def _word_piece(prefix: str, cleanup: bool) -> _Step:
    def step(token: str, first: bool) -> str:
        if not first:
            token = token[len(prefix) :] if token.startswith(prefix) else " " + token
        if cleanup:
            for dirty, clean in _CLEANUP:
                token = token.replace(dirty, clean)
        return token

    return step


def _replace(pattern: str, content: str) -> _Step:
    return lambda token, first: token.replace(pattern, content)


def _strip(content: str, start: int, stop: int) -> _Step:
    def step(token: str, first: bool) -> str:
        for _ in range(start):
            token = token.removeprefix(content)
        for _ in range(stop):
            token = token.removesuffix(content)
        return token

    return step
