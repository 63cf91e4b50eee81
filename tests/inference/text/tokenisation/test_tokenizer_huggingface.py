"""Encoding and decoding with a tokenizer.json, against the library; files that are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from inference.errors import (
    CorruptCheckpoint,
    InvalidRequest,
    UnsupportedFormat,
)
from inference.text.tokenisation.detokenizer import Detokenizer
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.vocabularies import SAMPLES, STYLES, byte_level


@pytest.fixture(scope="module", params=sorted(STYLES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tokenizer of the library and ours from its file."""
    library = STYLES[request.param]()
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    library.save(str(path))
    ours = load_tokenizer(TokenizerSpec("huggingface", library.get_vocab_size() + 3, path=str(path)))
    yield library, ours
    ours.close()


def test_huggingface_encodes_as_the_library(pair: Any) -> None:
    library, ours = pair
    for text in SAMPLES:
        library.encode_special_tokens = True
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
        library.encode_special_tokens = False
        assert ours.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids


def test_no_token_has_more_bytes_than_the_longest(pair: Any) -> None:
    library, ours = pair
    is_bounded = isinstance(library.model, models.BPE)
    assert (ours.longest_token_bytes is not None) == is_bounded
    for text in (*SAMPLES, "\u1112\u1161\u11ab" * 50, " " * 300):
        if is_bounded:
            assert len(text.encode()) <= ours.longest_token_bytes * len(ours.encode(text))


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "aa"}, "content": "a"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
    ],
)
def test_tokenizers_that_leave_text_out_have_no_longest_token(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(byte_level().to_str()) | change))
    tokenizer = load_tokenizer(TokenizerSpec("huggingface", 600, path=str(path)))
    assert tokenizer.longest_token_bytes is None
    tokenizer.close()


def test_normalised_text_has_a_longest_token_too(tmp_path: Path) -> None:
    library = byte_level()
    plain = max(len(token.encode()) for token in library.get_vocab())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(library.to_str()) | {"normalizer": {"type": "NFC"}}))
    tokenizer = load_tokenizer(TokenizerSpec("huggingface", 600, path=str(path)))
    assert tokenizer.longest_token_bytes == 3 * plain
    tokenizer.close()


def test_huggingface_decodes_as_the_library(pair: Any) -> None:
    library, ours = pair
    for text in SAMPLES:
        ids = library.encode(text).ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == library.decode(ids, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_huggingface_decodes_any_ids_as_the_library(pair: Any, data: st.DataObject) -> None:
    """Where bytes are no UTF-8 the two write different numbers of U+FFFD; see ``decoding``."""
    library, ours = pair
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=12))
    skip = data.draw(st.booleans())
    expected = library.decode(ids, skip_special_tokens=skip)
    found = ours.decode(ids, skip_special_tokens=skip)
    if "�" in expected or "�" in found:
        assert "�" in expected and "�" in found
    else:
        assert found == expected


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_stream_after_a_prompt_continues_the_prompt(pair: Any, data: st.DataObject) -> None:
    """decode(prompt) + stream = decode(prompt + output), the leading-space rules included."""
    library, ours = pair
    ids = library.encode(data.draw(st.sampled_from(SAMPLES))).ids
    split = data.draw(st.integers(0, len(ids)))
    whole = ours.decode(ids)
    prompt = ours.decode(ids[:split])
    if "�" in whole or "�" in prompt:
        return
    detokenizer = Detokenizer(ours, at_start=all(token_id in ours.special_ids for token_id in ids[:split]))
    streamed = "".join([detokenizer.push(token_id) for token_id in ids[split:]]) + detokenizer.flush()
    assert prompt + streamed == whole


def test_huggingface_specials_and_gaps(tmp_path: Path) -> None:
    library = byte_level()
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    size = library.get_vocab_size()
    tokenizer = load_tokenizer(TokenizerSpec("huggingface", size + 3, path=str(path), bos_token_id=0))
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.invalid_token_ids == (size, size + 1, size + 2)
    assert tokenizer.encode("x<|im_end|>").count(1) == 0
    assert tokenizer.encode("x<|im_end|>", parse_special=True).count(1) == 1
    assert tokenizer.encode("<s>x", parse_special=True).count(0) == 1
    assert tokenizer.encode("x").count(0) == 1
    assert tokenizer.decode([2], skip_special_tokens=False) == "<|a b|>"
    tokenizer.close()


def hostile(tmp_path: Path, **changes: Any) -> Path:
    state = json.loads(byte_level().to_str()) | changes
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    return path


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a+)+$"}}},
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a|aa)+$"}}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "Q"}, "content": "Q" * 300}] * 4,
            }
        },
    ],
)
def test_trap_fails_the_request_and_nothing_else(tmp_path: Path, changes: Any) -> None:
    tokenizer = load_tokenizer(TokenizerSpec("huggingface", 700, path=str(hostile(tmp_path, **changes))))
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match="failed on this text"):
        tokenizer.encode("a" * 40 + "!" + "Q" * 40)
    assert time.monotonic() - started < 20
    assert len(tokenizer.encode("b")) == 1
    tokenizer.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b'{"model": 3}',
        b"\x80\x04\x95",
        b"[" * 100_000,
        b'{"version": "1.0", "model": {"type": "X"}}',
    ],
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="can't be used"):
        load_tokenizer(TokenizerSpec("huggingface", 10, path=str(path)))


def test_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(CorruptCheckpoint, match="larger than"):
        load_tokenizer(TokenizerSpec("huggingface", 10, path=str(path)))


def test_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    path = hostile(tmp_path, decoder={"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True})
    with pytest.raises(UnsupportedFormat, match="'CTC'"):
        load_tokenizer(TokenizerSpec("huggingface", 10, path=str(path)))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="missing"):
        load_tokenizer(TokenizerSpec("huggingface", 10, path=str(tmp_path / "tokenizer.json")))
