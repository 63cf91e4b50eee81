"""Detokenising in increments equals detokenising whole; stop strings cut exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.tokenisation.detokenizer import Detokenizer
from inference.text.tokenisation.stop_strings import StopStrings
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec


class _Bytes:
    """A byte tokenizer: id = byte, 256 is a control token, 257 stands for nothing."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        return list(text.encode())

    def close(self) -> None:
        pass


def byte_tokenizer(lead: tuple[str, int] = ("", 0)) -> Tokenizer:
    return Tokenizer(
        TokenizerSpec("builtin", 258),
        "bytes",
        _Bytes(),
        token_bytes=lambda token_id, first: bytes([token_id]),
        special_tokens={"<|end|>": 256},
        invalid_token_ids=[257],
        lead=lead,
    )


BYTES = byte_tokenizer()


def stream(detokenizer: Detokenizer, ids: list[int]) -> str:
    text = "".join([detokenizer.push(token_id) for token_id in ids])
    return text + detokenizer.flush()


def cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Reference: the first position at which a stop string is complete; the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(st.lists(st.integers(0, 257)), st.booleans())
def test_increments_equal_whole(ids: list[int], skip: bool) -> None:
    assert stream(Detokenizer(BYTES, skip_special_tokens=skip, at_start=True), ids) == BYTES.decode(
        ids, skip_special_tokens=skip
    )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_replacement_character_in_valid_text(text: str) -> None:
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@given(st.text("aAbc é", max_size=40), st.integers(0, 3))
def test_leading_rule_equals_whole(text: str, count: int) -> None:
    tokenizer = byte_tokenizer((" ", count))
    ids = list(("  " + text).encode())
    assert stream(Detokenizer(tokenizer, at_start=True), ids) == tokenizer.decode(ids)
    assert stream(Detokenizer(tokenizer, at_start=False), ids) == "  " + text


@settings(max_examples=400)
@given(
    st.text("ab🙂", max_size=30),
    st.lists(st.text("ab🙂", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
def test_stop_strings_cut_where_the_slow_search_cuts(text: str, stops: list[str], include: bool) -> None:
    detokenizer = Detokenizer(BYTES, stop=StopStrings(stops), include_stop_str=include)
    expected, reason = cut(text, stops, include)
    assert stream(detokenizer, list(text.encode())) == expected
    assert detokenizer.stop_reason == reason


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_emitted_text_is_never_taken_back(text: str, stops: list[str]) -> None:
    """At every moment what was emitted is a prefix of the final text, and only a possible beginning is held."""
    detokenizer = Detokenizer(BYTES, stop=StopStrings(stops))
    final, _ = cut(text, stops, False)
    emitted = ""
    for number, char in enumerate(text, start=1):
        emitted += detokenizer.push(ord(char))
        assert final.startswith(emitted)
        if detokenizer.stop_reason is None:
            held = text[len(emitted) : number]
            assert not held or any(stop.startswith(held) for stop in stops)


@given(st.text("ab", min_size=1, max_size=30), st.text("ab", min_size=1, max_size=3), st.data())
def test_a_second_attempt_goes_on_where_the_first_ended(text: str, stop: str, data: st.DataObject) -> None:
    ids = list(text.encode())
    split = data.draw(st.integers(0, len(ids)))
    undisturbed = stream(Detokenizer(BYTES, stop=StopStrings([stop])), ids)
    first = Detokenizer(BYTES, stop=StopStrings([stop]))
    delivered = "".join([first.push(token_id) for token_id in ids[:split]])
    second = Detokenizer(BYTES, stop=StopStrings([stop]))
    for token_id in ids[:split]:
        second.push(token_id)
    assert delivered + stream(second, ids[split:]) == undisturbed


def test_stop_string_within_min_tokens_is_ignored() -> None:
    detokenizer = Detokenizer(BYTES, stop=StopStrings(["b"]), min_tokens=2)
    assert stream(detokenizer, list(b"abaab!")) == "abaa"
    assert detokenizer.stop_reason == "b"


def test_skipped_control_token_named_as_stop_string_ends_the_text() -> None:
    detokenizer = Detokenizer(BYTES, stop=StopStrings(["<|end|>"]))
    assert stream(detokenizer, [*b"ab", 256, *b"cd"]) == "ab"
    assert detokenizer.stop_reason == "<|end|>"
    included = Detokenizer(BYTES, stop=StopStrings(["<|end|>"]), include_stop_str=True)
    assert stream(included, [*b"ab", 256, *b"cd"]) == "ab<|end|>"


def test_text_held_back_at_a_control_token_is_not_lost() -> None:
    detokenizer = Detokenizer(BYTES, stop=StopStrings(["abc", "<|end|>"]))
    assert stream(detokenizer, [*b"xab", 256]) == "xab"


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base", "llama3", "deepseek_v3"])
def test_characters_of_several_tokens_stream_whole(name: str) -> None:
    tokenizer = load_tokenizer(TokenizerSpec("builtin", VOCABULARIES[name][0], name=name))
    text = "👩‍👩‍👧‍👦 家族、ありがとう — naïve Ωμέγα \n\t🏳️‍🌈 한국어"
    ids = tokenizer.encode(text)
    pieces = [(detok := Detokenizer(tokenizer)).push(ids[0])]
    pieces += [detok.push(token_id) for token_id in ids[1:]]
    assert len(ids) > 20
    assert "".join(pieces) + detok.flush() == text
    assert not any("�" in piece for piece in pieces)


def test_broken_character_at_the_end_reads_as_replacement() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(byte) for byte in "é".encode()[:1]] == [""]
    assert detokenizer.flush() == "�"


def test_many_long_stop_strings_cost_one_step_per_character() -> None:
    stops = StopStrings(["a" * length + "b" for length in range(1000, 1016)])
    detokenizer = Detokenizer(BYTES, stop=stops)
    assert stream(detokenizer, list(b"a" * 20000 + b"c")) == "a" * 20000 + "c"
