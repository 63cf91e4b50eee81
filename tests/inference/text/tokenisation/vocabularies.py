"""Vocabularies that tests are written against: samples of text, ranks, and tokenizers of the libraries."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import splintr
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

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


def write_ranks(path: Path, tokens: list[bytes]) -> Path:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


BYTES = [bytes([byte]) for byte in range(256)]
TOKENS = [*BYTES, b"he", b"ll", b"hell", b"hello", b" w", b"or"]


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
