"""SentencePiece models against the library that made them, and damaged ones."""

from __future__ import annotations

import contextlib

import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.errors import CheckpointError, CorruptCheckpoint, UnsupportedFormat
from inference.text.tokenisation.sentencepiece_file import read_sentencepiece
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.text.tokenisation.vocabulary import TokenType
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.file_vocabularies import TEXTS, pieces
from tests.inference.text.tokenisation.vocabularies import SAMPLES

KINDS = {
    "bpe": {}, "bpe-plain": {"prefix": False},
    "bpe-collapse": {"collapse": True}, "bpe-unknown": {"byte_fallback": False},
    "unigram": {}, "unigram-collapse": {"collapse": True}, "unigram-unknown": {"byte_fallback": False},
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request, tmp_path_factory):
    model = pieces(request.param.partition("-")[0], **KINDS[request.param])
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.model"
    path.write_bytes(model)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    added = (("<|extra|>", library.get_piece_size() + 2),)
    ours = load_tokenizer(TokenizerSpec("sentencepiece", 2000, path=str(path), added_tokens=added))
    yield library, ours, "collapse" in request.param, "unknown" in request.param
    ours.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=st.one_of(st.sampled_from(SAMPLES), TEXTS))
def test_texts_are_encoded_as_by_the_library(pair, text):
    library, ours, collapses, has_unknown = pair
    ids, expected = ours.encode(text), library.encode(text)
    if ids != expected:  # two orders of the same tokens have the same sum of scores
        assert sorted(ids) == sorted(expected)
    if not collapses and not has_unknown:
        assert ours.decode(ids) == text
        assert not ours.special_ids & set(ids)
        assert ours.longest_token_bytes is not None
        assert len(text.encode()) <= ours.longest_token_bytes * len(ids)


def test_added_tokens_are_control_tokens_behind_the_pieces(pair):
    library, ours, *_ = pair
    extra = library.get_piece_size() + 2
    assert ours.special_tokens["<|extra|>"] == extra
    assert ours.encode("<|extra|>", parse_special=True) == [extra]
    assert extra not in ours.encode("<|extra|>")
    assert set(range(library.get_piece_size(), 2000)) - {extra} == set(ours.invalid_token_ids)


def test_pieces_and_ids(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(pieces("bpe"))
    found = read_sentencepiece(path)
    library = sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe"))
    assert found.vocabulary.tokens == tuple(library.id_to_piece(i) for i in range(library.get_piece_size()))
    assert found.ids == {"unknown": 0, "bos": 1, "eos": 2}
    assert found.vocabulary.types[:3] == (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL)


def test_other_models_are_refused(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(pieces("char"))
    with pytest.raises(UnsupportedFormat, match="kind char; unigram and BPE are read"):
        read_sentencepiece(path)


@pytest.mark.parametrize(
    "data", [b"", b"\x0a", b"\x0a\xff", b"\xff" * 20, b"\x0b\x01", b"\x08\x01", b"\x0a\x02\x18\x09"]
)
def test_what_is_no_model_is_refused(tmp_path, data):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="no SentencePiece model"):
        read_sentencepiece(path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_are_read_or_refused(tmp_path_factory, data):
    changed = bytearray(pieces("bpe")[-3000:] if data.draw(st.booleans()) else pieces("bpe")[:3000])
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.model"
    path.write_bytes(changed)
    with contextlib.suppress(CheckpointError):
        read_sentencepiece(path)
