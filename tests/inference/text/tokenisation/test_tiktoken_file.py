""".tiktoken files: ranks, byte-level text, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import (
    CorruptCheckpoint,
)
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.tiktoken_file import KIMI_FILE, PUBLISHED_FILES, control_tokens
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


PUBLISHED = "|".join((
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
))  # fmt: skip
"""As tokenization_kimi.py has it (https://huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct)."""


@given(st.text(st.sampled_from("aB'sé漢字ー 12\n\r\t.!ǅ\u0301") | st.characters(), max_size=40))
def test_texts_of_kimi_are_cut_as_its_own_code_cuts_them(text: str) -> None:
    own = PUBLISHED_FILES[KIMI_FILE].pattern
    assert regex.findall(own, text, regex.V1) == regex.findall(PUBLISHED, text, regex.V1)


def test_a_file_of_kimi_is_cut_by_its_expression(tmp_path: Path) -> None:
    tokens = [*TOKENS, "é".encode(), "é漢".encode()]
    ids = {}
    for name in ("other.tiktoken", KIMI_FILE):
        path = write_ranks(tmp_path / name, tokens)
        tokenizer = load_tokenizer(TokenizerSpec("tiktoken", len(tokens), path=str(path)))
        ids[name] = tokenizer.encode("é漢")
        assert tokenizer.decode(ids[name]) == "é漢"
    assert ids["other.tiktoken"] == [tokens.index("é漢".encode())]
    assert ids[KIMI_FILE][0] == tokens.index("é".encode())  # a Chinese character begins a piece of its own


def test_a_file_of_hunyuan(tmp_path: Path) -> None:
    """Ids count the different tokens, control tokens follow, and texts are brought into NFC."""
    path = write_ranks(tmp_path / "hy.tiktoken", [*TOKENS[:256], TOKENS[3], "é".encode(), b"12"])
    special = control_tokens(path, 1 << 20)
    assert (special["<|endoftext|>"], special["<|extra_204|>"], len(special)) == (258, 467, 210)
    spec = TokenizerSpec("tiktoken", 468, path=str(path), added_tokens=tuple(special.items()))
    tokenizer = load_tokenizer(spec)
    assert tokenizer.encode("e\u0301") == [256]
    assert tokenizer.encode("<|eos|>", parse_special=True) == [special["<|eos|>"]]
    assert tokenizer.encode("12") == [ord("1"), ord("2")]  # digits are cut apart


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
