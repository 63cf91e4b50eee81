"""Encoding and decoding with all kinds of vocabularies, against the libraries they come from."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import splintr
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from inference.errors import (
    CorruptCheckpoint,
    InvalidRequest,
    InvalidTokenIds,
    UnsupportedFeature,
    UnsupportedFormat,
)
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.detokenizer import Detokenizer
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec

PATTERNS = {
    "cl100k_base": splintr.CL100K_BASE_PATTERN,
    "o200k_base": splintr.O200K_BASE_PATTERN,
    "llama3": splintr.LLAMA3_PATTERN,
}
SAMPLES = [
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\t\tand\n\n\nnewlines \r\n",
    "don't can't WE'LL",
    "1234567890 3.14159",
    "naïve café — “quotes” …",
    "你好世界，家族、ありがとう 한국어",
    "👩‍👩‍👧‍👦🏳️‍🌈 \u200b\ufeff",
    "def f(x):\n    return x ** 2  # comment\n",
    "CamelCase snake_case kebab-case",
    "<|system|>\nYou are <|im_end|> <|endoftext|><｜User｜>",
    "a" * 500,
    "ЗдравствуйтеМир Ωμέγα עברית عربي हिन्दी ไทย",
    "\u00a0\u2003 \u3000x",
]
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


def builtin(name: str, rows: int | None = None, **options: Any) -> Tokenizer:
    return load_tokenizer(TokenizerSpec("builtin", rows or VOCABULARIES[name][1], name=name, **options))


def tiktoken_oracle(name: str) -> tiktoken.Encoding:
    """tiktoken over the ranks that splintr holds."""
    library = splintr.Tokenizer.from_pretrained(name)
    special = set(library.special_tokens().values())
    ranks = {}
    for token_id in range(splintr.base_vocab_size(name)):
        if token_id not in special:
            try:
                ranks[library.decode_token_bytes(token_id)] = token_id
            except ValueError:
                continue
    return tiktoken.Encoding(
        name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens=library.special_tokens()
    )


# --- built-in vocabularies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_builtin_encodes_as_tiktoken(name: str) -> None:
    tokenizer, oracle = builtin(name), tiktoken_oracle(name)
    for text in SAMPLES:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode_ordinary(text)
        assert tokenizer.decode(ids) == text
        special_ids = tokenizer.encode(text, parse_special=True)
        assert special_ids == oracle.encode(text, allowed_special="all")
        assert tokenizer.decode(special_ids, skip_special_tokens=False) == text


def test_deepseek_encodes_as_a_byte_level_tokenizer_with_its_split() -> None:
    """The three-stage split of DeepSeek's own tokenizer.json, over the ranks that splintr holds."""
    tokenizer = builtin("deepseek_v3")
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    table = {}
    for token_id in range(128_000):
        if token_id not in tokenizer.special_ids and (data := tokenizer.token_bytes(token_id)):
            table[data] = token_id
    merges = []
    for data in table:
        # The pair that makes a token is the last split whose parts merge before it.
        if len(data) > 1:
            parts = [bytes([byte]) for byte in data]
            while len(parts) > 2:
                ranks = [table.get(parts[i] + parts[i + 1], 1 << 30) for i in range(len(parts) - 1)]
                best = min(range(len(ranks)), key=ranks.__getitem__)
                if ranks[best] >= table[data]:
                    break
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
            if len(parts) == 2:
                merges.append((parts[0], parts[1], table[data]))
    merges.sort(key=lambda item: item[2])

    def printable(data: bytes) -> str:
        return "".join(alphabet[byte] for byte in data)

    oracle = tokenizers.Tokenizer(
        models.BPE(
            vocab={printable(data): token_id for data, token_id in table.items()},
            merges=[(printable(left), printable(right)) for left, right, _ in merges],
        )
    )
    punctuation = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    words = (
        punctuation + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    )
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            for pattern in ("\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", words)
        ]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    for text in SAMPLES:
        assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
@settings(max_examples=50, deadline=None)
@given(text=ANY_TEXT)
def test_builtin_round_trip(name: str, text: str) -> None:
    tokenizer = _cached(name)
    assert tokenizer.decode(tokenizer.encode(text)) == text


_LOADED: dict[str, Tokenizer] = {}


def _cached(name: str) -> Tokenizer:
    if name not in _LOADED:
        _LOADED[name] = builtin(name)
    return _LOADED[name]


def test_long_text_takes_the_other_path_to_the_same_ids() -> None:
    tokenizer, oracle = builtin("cl100k_base"), tiktoken_oracle("cl100k_base")
    text = "".join(SAMPLES) * 40
    assert tokenizer.encode(text) == oracle.encode_ordinary(text)
    plain = "The quick brown fox. 1, 2, 3 and naïve 👍\n" * 1000
    assert tokenizer.encode(plain) == oracle.encode_ordinary(plain)


@pytest.mark.parametrize(
    ("name", "token", "token_id"),
    [
        ("cl100k_base", "<|system|>", 100277),
        ("cl100k_base", "<|/summary|>", 100330),
        ("o200k_base", "<|assistant|>", 200021),
        ("llama3", "<|think|>", 128305),
        ("llama3", "<|image|>", 128256),
        ("deepseek_v3", "<|/think|>", 128906),
        ("deepseek_v3", "<think>", 128798),
    ],
)
def test_agent_tokens(name: str, token: str, token_id: int) -> None:
    tokenizer = builtin(name)
    assert tokenizer.encode(token, parse_special=True) == [token_id]
    assert len(tokenizer.encode(token)) > 1
    assert tokenizer.decode([token_id]) == ""
    assert tokenizer.decode([token_id], skip_special_tokens=False) == token


def test_agent_tokens_beyond_the_embedding_are_text() -> None:
    tokenizer = builtin("llama3", rows=128256)
    ids = tokenizer.encode("<|system|>hi<|eot_id|>", parse_special=True)
    assert max(ids) == 128009
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|system|>hi<|eot_id|>"
    partial = builtin("cl100k_base", rows=100315)
    assert partial.encode("<|system|>", parse_special=True) == [100277]
    assert len(partial.encode("<|/summary|>", parse_special=True)) > 1


def test_ids_without_a_token_are_listed_and_decode_to_nothing() -> None:
    tokenizer = builtin("cl100k_base")
    assert tokenizer.invalid_token_ids == (100256, *range(100261, 100276))
    assert tokenizer.decode([100256, 15339]) == "hello"
    padded = builtin("llama3", rows=128512)
    assert set(range(128354, 128512)) <= set(padded.invalid_token_ids)


def test_text_beyond_the_embedding_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidTokenIds, match="embedding has 1000 rows"):
        builtin("o200k_base", rows=1000).encode("internationalisation")


@pytest.mark.parametrize("bad", [[-1], [100331], [1, True], [1.0], ["1"], [2**70], [None]])
def test_token_id_prompts_are_checked(bad: list[Any]) -> None:
    with pytest.raises(InvalidTokenIds):
        _cached("cl100k_base").check_token_ids(bad)
    assert _cached("cl100k_base").check_token_ids([0, 100330]) == (0, 100330)


def test_exactly_one_bos() -> None:
    tokenizer = builtin("llama3", bos_token_id=128000)
    assert tokenizer.encode("hi").count(128000) == 1
    assert tokenizer.encode("<|begin_of_text|>hi", parse_special=True).count(128000) == 1
    assert tokenizer.encode("hi", add_special_tokens=False).count(128000) == 0
    assert tokenizer.encode("", add_special_tokens=True) == [128000]


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "a\0b"])
def test_surrogates_and_nul_are_bad_requests(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _cached("cl100k_base").encode(text)
    assert caught.value.http_status == 400


def test_unknown_builtin_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="cl100k_base"):
        load_tokenizer(TokenizerSpec("builtin", 10, name="gemma2"))


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    tokenizer = load_tokenizer(TokenizerSpec("none", 100))
    assert tokenizer.check_token_ids([1, 99]) == (1, 99)
    assert tokenizer.decode([1, 2]) == ""
    assert not tokenizer.has_text
    with pytest.raises(UnsupportedFeature, match="token ids"):
        tokenizer.encode("hi")


# --- .tiktoken files -----------------------------------------------------------------------------


def write_ranks(path: Path, tokens: list[bytes]) -> Path:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


BYTES = [bytes([byte]) for byte in range(256)]
TOKENS = [*BYTES, b"he", b"ll", b"hell", b"hello", b" w", b"or"]


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


# --- tokenizer.json ------------------------------------------------------------------------------

CORPUS = [*SAMPLES, "the quick brown fox jumps over the lazy dog, isn't it? yes. hello world " * 5] * 3


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<|im_end|>", "<|a b|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.add_tokens(["<tool_call>"])
    return tokenizer


def sentence_piece() -> tokenizers.Tokenizer:
    """The shape of Llama 2's: ▁ for spaces, bytes for the rest, one leading space put and taken away."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def metaspace() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def no_decoder() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    state = json.loads(tokenizer.to_str()) | {"decoder": None}
    return tokenizers.Tokenizer.from_str(json.dumps(state))


STYLES = {
    "byte_level": byte_level,
    "sentence_piece": sentence_piece,
    "metaspace": metaspace,
    "word_piece": word_piece,
    "no_decoder": no_decoder,
}


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


# --- hostile tokenizer.json (F49) ----------------------------------------------------------------


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
