"""Vocabularies of ggjt files against the SentencePiece models that they were made of."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.ggjt_vocabulary import read_ggjt_vocabulary
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.text.tokenisation.vocabulary import TokenType
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.modelling.gguf.ggjt_writer import llama_tokens, small
from tests.inference.text.tokenisation.file_vocabularies import TEXTS
from tests.inference.text.tokenisation.vocabularies import CORPUS


def write(path: Path, tokens: list[tuple[bytes, float]]) -> Path:
    path.write_bytes(small(tokens=tokens, tensors=()).content())
    return path


def converted(library: sentencepiece.SentencePieceProcessor) -> list[tuple[bytes, float]]:
    """Tokens as ``convert.py`` wrote them."""
    found = []
    for token_id in range(library.get_piece_size()):
        text = library.id_to_piece(token_id)
        if library.is_unknown(token_id):
            stored = " ⁇ ".encode()
        elif library.is_control(token_id):
            stored = b""
        elif library.is_byte(token_id):
            stored = bytes([int(text[3:-1], 16)])
        else:
            stored = text.replace("▁", " ").encode()
        found.append((stored, library.get_score(token_id)))
    return found


@pytest.fixture(scope="module")
def library() -> sentencepiece.SentencePieceProcessor:
    """A model in Llama's layout: unknown, the ends, the bytes, the pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines() if line.strip()]),
        model_writer=model, model_type="bpe", vocab_size=600, byte_fallback=True, add_dummy_prefix=True,
        remove_extra_whitespaces=False, normalization_rule_name="identity", hard_vocab_limit=False,
        allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.fixture(scope="module")
def tokenizer(library, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("ggjt") / "model.bin", converted(library))
    found: Tokenizer = load_tokenizer(TokenizerSpec("ggjt", library.get_piece_size(), path=str(path), bos_token_id=1))
    yield found
    found.close()


@settings(deadline=None)
@given(TEXTS)
def test_ids_are_those_of_sentencepiece(library, tokenizer: Tokenizer, text: str) -> None:
    expected = library.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.decode(expected) == text


def test_ids_say_what_tokens_are(tmp_path: Path) -> None:
    found = read_ggjt_vocabulary(write(tmp_path / "m.bin", llama_tokens(266)))
    vocabulary = found.vocabulary
    assert vocabulary.tokens[:4] == ("<unk>", "<s>", "</s>", "<0x00>")
    assert vocabulary.tokens[259:263] == ("▁a", "a", "b", "ab")
    assert vocabulary.types[:4] == (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, TokenType.BYTE)
    assert vocabulary.types[260] == TokenType.NORMAL
    assert len(vocabulary.byte_ids()) == 256
    assert found.ids == {"unknown": 0, "bos": 1, "eos": 2}
    assert vocabulary.space_prefix


def test_without_the_layout_bytes_are_ordinary_tokens(tmp_path: Path) -> None:
    tokens = [(b"?", 0.0), (b"", 0.0), (b"", 0.0), (b"a", -1.0), (b"", 0.0), (b"<|im_end|>", -2.0)]
    vocabulary = read_ggjt_vocabulary(write(tmp_path / "m.bin", tokens)).vocabulary
    assert vocabulary.byte_ids() == {}
    assert vocabulary.types[3:] == (TokenType.NORMAL, TokenType.UNUSED, TokenType.CONTROL)


@pytest.mark.parametrize(
    ("token", "message"), [((b"\xff\xfe", 0.0), "which isn't UTF-8"), ((b"a", math.nan), "score nan")]
)
def test_wrong_tokens_are_refused(tmp_path: Path, token: tuple[bytes, float], message: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=message):
        read_ggjt_vocabulary(write(tmp_path / "m.bin", [*llama_tokens(260), token]))


def test_bytes_behind_symbols_of_the_model_are_found(tmp_path: Path) -> None:
    tokens = llama_tokens(260)
    tokens[3:3] = [(b"<tool_call>", 0.0)]
    vocabulary = read_ggjt_vocabulary(write(tmp_path / "m.bin", tokens)).vocabulary
    assert vocabulary.byte_ids()[0] == 4 and len(vocabulary.byte_ids()) == 256
