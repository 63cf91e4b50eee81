"""TokenForms: bytes of single tokens by the decoder's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import UnsupportedFormat
from inference.text.tokenisation.decoding import TokenForms, byte_alphabet


def forms(decoder: dict[str, Any] | None, *tokens: str | None) -> list[tuple[bytes, bytes]]:
    """Bytes of each token, first in a text and later."""
    found = TokenForms(tokens, decoder)
    return [(found.token_bytes(number, True), found.token_bytes(number, False)) for number in range(len(tokens))]


def test_the_alphabet_has_a_character_for_each_byte() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["A"], alphabet["Ġ"]) == (0x41, 0x20)


@pytest.mark.parametrize(
    ("decoder", "token", "first", "later"),
    [
        (None, "a", b"a", b" a"),
        ({"type": "ByteLevel"}, "Ġa", b" a", b" a"),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, "▁a", b"a", b" a"),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, "▁a", b" a", b" a"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "##a", b"##a", b"a"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "a", b"a", b" a"),
        ({"type": "ByteFallback"}, "<0xE4>", b"\xe4", b"\xe4"),
        ({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, "▁a▁", b" a ", b" a "),
        ({"type": "Strip", "content": " ", "start": 1, "stop": 1}, "  a ", b" a", b" a"),
    ],
)
def test_bytes_of_a_token(decoder: dict[str, Any] | None, token: str, first: bytes, later: bytes) -> None:
    assert forms(decoder, token) == [(first, later)]


def test_an_id_without_a_token_has_no_bytes() -> None:
    assert forms(None, "a", None)[1] == (b"", b"")


def test_a_strip_after_fusing_is_the_lead_of_the_whole_text() -> None:
    parts = [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    found = TokenForms([" a"], {"type": "Sequence", "decoders": parts})
    assert (found.lead, found.max_lead) == (" ", 1)
    assert found.token_bytes(0, True) == b" a"


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC"},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}],
        },
    ],
)
def test_decoders_that_span_tokens_are_refused(decoder: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormat, match="can't be streamed"):
        TokenForms(["a"], decoder)


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([replace("a", "a" * 300)] * 5, "more than 16 times longer"),
        ([replace("a", "aa")] * 5, "more than 16 times longer"),
        ([{"type": "Strip", "content": "a", "start": 10**12, "stop": 0}], "at most 64"),
        ([{"type": "Strip", "content": "a", "start": 0, "stop": 65}], "at most 64"),
        ([{"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 10**12, "stop": 0}], "at most 64"),
        ([replace("a", "b")] * 65, "more than 64 steps"),
    ],
)
def test_decoders_that_would_cost_the_worker_too_much_are_refused(steps: list[dict[str, Any]], message: str) -> None:
    """They run for every token in the thread of the engine: one hung it, one made gigabytes of a token."""
    with pytest.raises(UnsupportedFormat, match=message):
        forms({"type": "Sequence", "decoders": steps}, "a")


def test_decoders_at_the_limits_are_read() -> None:
    steps = [replace("a", "aa")] * 4 + [{"type": "Strip", "content": "a", "start": 8, "stop": 7}]
    assert forms({"type": "Sequence", "decoders": steps}, "a") == [(b"a", b"a")]
