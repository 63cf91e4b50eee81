""".tiktoken files: ranks, byte-level text, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.errors import (
    CorruptCheckpoint,
)
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.vocabularies import SAMPLES, TOKENS, write_ranks


def test_tiktoken_file(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken", TOKENS)
    spec = TokenizerSpec(
        "tiktoken",
        264,
        path=str(path),
        bos_token_id=262,
        added_tokens=(("<|end|>", 263),),
        special_tokens=(("bos_token", "<s>"),),
    )
    tokenizer = load_tokenizer(TokenizerSpec.from_dict(json.loads(json.dumps(spec.to_dict()))))
    assert tokenizer.encode("hello w<|end|>")[:3] == [262, 259, 260]
    assert tokenizer.encode("hello<s><|end|>", parse_special=True) == [262, 259, 262, 263]
    assert tokenizer.special_ids == {262, 263}
    assert tokenizer.invalid_token_ids == ()
    for text in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tiktoken_file_in_byte_level_text_is_translated(tmp_path: Path) -> None:
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    tokens = ["".join(alphabet[byte] for byte in token).encode() for token in TOKENS]
    path = write_ranks(tmp_path / "x.tiktoken", tokens)
    tokenizer = load_tokenizer(TokenizerSpec("tiktoken", 262, path=str(path)))
    assert tokenizer.encode("hello w") == [259, 260]
    assert tokenizer.decode([259, 260]) == "hello w"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"aGU= 0\n", "255 of the 256 bytes|256 of the 256 bytes"),
        (b"not base64! 0\n", "line 1"),
        (b"aGU= -1\n", "line 1"),
        (b"aGU= 99999999\n", "line 1"),
        (b"aGU=\n", "line 1"),
        (b"aGU= 0\naGU= 1\n", "twice"),
        (b"aGU= 0\naGk= 0\n", "one id to two"),
        (b"\x80\x04pickle", "line 1"),
        (b"", "256 of the 256"),
    ],
)
def test_bad_tiktoken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=message):
        load_tokenizer(TokenizerSpec("tiktoken", 300, path=str(path)))
