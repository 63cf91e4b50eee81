"""Vocabularies in GGUF files, against the libraries that they come from."""

from __future__ import annotations

import json
import math

import pytest
import sentencepiece
import splintr
import tokenizers
from hypothesis import HealthCheck, given, settings
from tokenizers import models, normalizers, trainers

from inference.errors import BlazrError, CorruptCheckpoint, UnsupportedFormat
from inference.text.tokenisation.gguf_vocabulary import read_gguf_vocabulary
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.file_vocabularies import (
    CONTROL,
    TEXTS,
    byte_bpe,
    pieces,
    write_byte_bpe,
    write_gguf,
    write_pieces_as_gguf,
)
from tests.inference.text.tokenisation.vocabularies import CORPUS, SAMPLES

PUBLISHED = {
    "gpt-2": splintr.GPT2_PATTERN,
    "llama-bpe": splintr.LLAMA3_PATTERN,
    "qwen2": splintr.QWEN2_PATTERN,
    "gpt-4o": splintr.O200K_BASE_PATTERN,
}
"""Expressions as another library has them, by our names."""


def load(path, rows=10_000) -> Tokenizer:
    return load_tokenizer(TokenizerSpec("gguf", rows, path=str(path)))


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def byte_pair(request, tmp_path_factory):
    library = byte_bpe(PUBLISHED[request.param])
    ours = load(write_byte_bpe(tmp_path_factory.mktemp("gguf") / "a.gguf", library, request.param))
    yield library, ours
    ours.close()


@pytest.fixture(scope="module", params=["bpe", "bpe-no-prefix", "unigram"])
def piece_pair(request, tmp_path_factory):
    kind, _, no_prefix = request.param.partition("-")
    model = pieces(kind, prefix=not no_prefix)
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    write_pieces_as_gguf(path, model, "llama" if kind == "bpe" else "t5", add_space_prefix=not no_prefix)
    ours = load(path)
    yield sentencepiece.SentencePieceProcessor(model_proto=model), ours
    ours.close()


def assert_same(ours: list[int], expected: list[int]) -> None:
    """The same tokens; where two orders of them have the same sum of scores, a unigram model takes either."""
    if ours != expected:
        assert sorted(ours) == sorted(expected)


def test_bytes_are_encoded_as_by_the_library(byte_pair):
    library, ours = byte_pair
    library.encode_special_tokens = True
    for text in SAMPLES:
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
    library.encode_special_tokens = False
    for text in (*SAMPLES, "<s>x<|im_end|>\n<tool_call>"):
        assert ours.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=TEXTS)
def test_any_text_comes_back_from_bytes(byte_pair, text):
    library, ours = byte_pair
    library.encode_special_tokens = True
    ids = ours.encode(text)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == text
    assert not ours.special_ids & set(ids)


def test_pieces_are_encoded_as_by_sentencepiece(piece_pair):
    library, ours = piece_pair
    for text in SAMPLES:
        assert_same(ours.encode(text), library.encode(text))
        assert ours.decode(ours.encode(text)) == text


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=TEXTS)
def test_any_text_comes_back_from_pieces(piece_pair, text):
    library, ours = piece_pair
    ids = ours.encode(text)
    assert_same(ids, library.encode(text))
    assert ours.decode(ids) == text
    assert not ours.special_ids & set(ids)


@pytest.mark.parametrize("text", [*CONTROL, "<|im_end|>" * 3, "a<s>", "<0x41>", "<unk>", "</s>"])
def test_text_never_becomes_a_control_token(byte_pair, piece_pair, text):
    for _, ours in (byte_pair, piece_pair):
        ids = ours.encode(text)
        assert not ours.special_ids & set(ids)
        assert ours.decode(ids) == text


def test_pieces_behind_a_control_token_begin_anew(piece_pair):
    library, ours = piece_pair
    end = ours.special_tokens["<|im_end|>"]
    expected = [*library.encode("a b"), end, *library.encode("c")]
    assert ours.encode("a b<|im_end|>c", parse_special=True) == expected
    assert ours.encode_pieces([("a b", False), ("<|im_end|>", True), ("c", False)]) == expected
    assert ours.encode_pieces([("a ", False), ("b", False)]) == [
        *library.encode("a "),
        *ours.encode_pieces([("b", False)])[-1:],
    ]


def test_what_the_file_states_of_its_tokens(tmp_path):
    keys = {"bos_token_id": 0, "eos_token_id": 1, "eot_token_id": 1, "padding_token_id": 4_294_967_295}
    library = byte_bpe(splintr.LLAMA3_PATTERN)
    template = {"tokenizer.chat_template": "{{ messages }}"}
    found = read_gguf_vocabulary(write_byte_bpe(tmp_path / "a.gguf", library, "llama-bpe", **keys, **template))
    assert (found.model, found.pre, found.adds_bos, found.bos_is_stated) == ("gpt2", "llama-bpe", True, False)
    assert (dict(found.ids), found.end_ids) == ({"bos": 0, "eos": 1, "eot": 1}, (1,))
    assert found.chat_template == "{{ messages }}"
    found = read_gguf_vocabulary(write_byte_bpe(tmp_path / "b.gguf", library, None, add_bos_token=True, bos_token_id=0))
    assert (found.pre, found.pre_is_stated, found.adds_bos) == ("default", False, True)


def test_tokens_that_control_a_chat_are_control_tokens_whatever_their_type(tmp_path):
    library = byte_bpe(splintr.GPT2_PATTERN)
    path = write_byte_bpe(
        tmp_path / "a.gguf", library, "gpt-2", token_type=[4] * 2 + [1] * (library.get_vocab_size() - 2)
    )
    ours = load(path)
    assert set(ours.special_tokens) == set(CONTROL)
    assert not ours.special_ids & set(ours.encode("<s><|im_end|>"))
    ours.close()


def test_a_byte_without_a_token_is_refused_by_name(tmp_path):
    ours = load(write_gguf(tmp_path / "a.gguf", "gpt2", ["a", "b"], {"pre": "gpt-2", "merges": ["a b"]}))
    assert ours.encode("ab") == [0, 1]  # the merge makes no token
    with pytest.raises(BlazrError, match=r"no token for a byte of U\+0063"):
        ours.encode("abc")
    ours.close()


@pytest.mark.parametrize(
    ("model", "tokens", "keys", "error", "word"),
    [
        ("gpt2", ["a"], {"pre": "new-one"}, UnsupportedFormat, "pre-tokeniser 'new-one'.*known are"),
        ("bert", ["a"], {}, UnsupportedFormat, "kind 'bert'"),
        ("gpt2", ["a", "b"], {"pre": "gpt-2", "token_type": [1]}, CorruptCheckpoint, "2 tokens and 1 types"),
        ("llama", ["a", "b"], {"scores": [0.5]}, CorruptCheckpoint, "2 tokens and 1 scores"),
        ("gpt2", ["a"], {"pre": "gpt-2", "token_type": [math.nan]}, CorruptCheckpoint, "token_type: whole numbers"),
        ("t5", ["a"], {"scores": [0.5], "precompiled_charsmap": [math.inf]}, CorruptCheckpoint, "charsmap: whole num"),
        ("llama", ["a", "b"], {"scores": [0.5, math.nan]}, CorruptCheckpoint, "the score of token 1 is nan"),
        ("t5", ["a", "b"], {"scores": [-math.inf, 0.5]}, CorruptCheckpoint, "the score of token 0 is -inf"),
        ("gpt2", ["a", "b"], {"pre": "gpt-2", "token_type": [1, 7]}, CorruptCheckpoint, "type 7; the types 1 to 6"),
        ("gpt2", ["a"], {"pre": "gpt-2", "merges": ["ab"]}, CorruptCheckpoint, "two tokens with a space"),
        ("gpt2", [b"\xff"], {"pre": "gpt-2"}, CorruptCheckpoint, "isn't UTF-8"),
        ("gpt2", ["a"], {"pre": "gpt-2", "bos_token_id": "x"}, CorruptCheckpoint, "which is no id"),
        ("gpt2", ["a" * 5000], {"pre": "gpt-2"}, CorruptCheckpoint, "the limit is 4096"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_or_is_unknown_is_refused(tmp_path, model, tokens, keys, error, word):
    path = write_gguf(tmp_path / "a.gguf", model, tokens, keys)
    with pytest.raises(error, match=word):
        read_gguf_vocabulary(path)
    with pytest.raises(CorruptCheckpoint, match="can't be used"):
        load(path)


def test_gemma4s_merges_are_of_characters(tmp_path):
    """As the library has them with a normaliser for spaces and tokens for bytes, which its tokenizer.json has."""
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", *bytes_of]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, limit_alphabet=60, show_progress=False)
    library.train_from_iterator(["\n\n\n\n", *(text[:400] for text in CORPUS)], trainer)
    state = json.loads(library.to_str())
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
    types = [
        6 if token in bytes_of else 3 if token in special[:6] else 4 if token == "<|channel>" else 1 for token in tokens
    ]
    types[3] = 2
    merges = [" ".join(merge) for merge in state["model"]["merges"]]
    keys = {"token_type": types, "merges": merges, "add_space_prefix": False, "bos_token_id": 2, "eos_token_id": 1}
    path = write_gguf(tmp_path / "a.gguf", "gemma4", tokens, {**keys, "unknown_token_id": 3})
    plain = tokenizers.Tokenizer.from_str(json.dumps(state | {"added_tokens": []}))
    found = read_gguf_vocabulary(path)
    assert (found.adds_bos, found.end_ids, found.pre) == (True, (1, 5), None)
    ours = load(path)
    for text in (*SAMPLES, " two  spaces\n\n\nlines 世界\t", "ÿ😀"):
        expected = plain.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == expected, text
        assert ours.decode(expected) == text
    assert ours.encode("<|turn>a<|channel>", parse_special=True)[::2] == [4, 6]
    assert 6 not in ours.encode("<|channel>")
    ours.close()


@pytest.mark.parametrize("num_chars", [4096, 4097, 1 << 20])
def test_a_long_token_is_decoded_whole_or_refused(tmp_path, num_chars):
    """CVE-2025-49847: its length was cut to 32 bits before it was copied into a buffer."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256)), "▁", "a", "x" * num_chars]
    keys = {"token_type": [2, 3, 3, *[6] * 256, 1, 1, 1], "scores": [0.0] * len(tokens)}
    path = write_gguf(tmp_path / "a.gguf", "llama", tokens, keys)
    if num_chars > 4096:
        with pytest.raises(CorruptCheckpoint, match=f"has a token of {num_chars} characters; the limit is 4096"):
            load(path)
        return
    tokenizer = load(path)
    assert [tokenizer.token_bytes(len(tokens) - number) for number in (1, 2)] == [b"x" * num_chars, b"a"]
    tokenizer.close()
