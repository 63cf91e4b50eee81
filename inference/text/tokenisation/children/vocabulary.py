"""Child that holds the vocabulary of a file: it reads the file, tells its tokens, and encodes.

Reading needs time and memory by what the file states, and so do expressions and tables in it: all of it happens here,
under limits. Control tokens are no part of the library's model: the parent's text can't become one, whatever merges or
scores the file has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from inference.errors import BlazrError
from inference.text.tokenisation.children.loop import Refused, serve
from inference.text.tokenisation.control_tokens import ControlTokens
from inference.text.tokenisation.ggjt_vocabulary import read_ggjt_vocabulary
from inference.text.tokenisation.gguf_vocabulary import read_gguf_vocabulary
from inference.text.tokenisation.sentencepiece_file import read_sentencepiece
from inference.text.tokenisation.tekken_file import read_tekken
from inference.text.tokenisation.vocabulary import SPACE, TokenType, Vocabulary, from_alphabet

MAX_IDS = 1 << 23

Reader = Callable[[Path, Mapping[str, int]], Vocabulary]
READERS: Mapping[str, Reader] = {
    "ggjt": lambda path, added: read_ggjt_vocabulary(path).vocabulary,
    "gguf": lambda path, added: read_gguf_vocabulary(path).vocabulary,
    "sentencepiece": lambda path, added: read_sentencepiece(path, added).vocabulary,
    "tekken": lambda path, added: read_tekken(path).vocabulary,
}
"""How a file of a kind is read, with the control tokens that other files add to it."""

_RUN = re.compile(" {2,}")


class Codec:
    """The vocabulary and what the parent may request of it."""

    def __init__(self) -> None:
        self._encoder: _Encoder | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """``path`` and ``kind`` load; ``vocab_size`` describes; ``pieces`` encodes."""
        if "path" in request:
            try:
                vocabulary = READERS[request["kind"]](Path(request["path"]), request["added_tokens"])
                self._encoder = _Encoder(vocabulary)
            except BlazrError as error:
                raise Refused(error.message) from None
            return {}
        assert self._encoder is not None
        if "vocab_size" in request:
            return self._encoder.describe(request["vocab_size"])
        ids: list[int] = []
        first = request["first"]
        for text, parse_special in request["pieces"]:
            ids += self._encoder.encode(text, parse_special, first)
            if len(ids) > MAX_IDS:
                raise Refused(f"it makes more than {MAX_IDS} tokens of the text")
            first = first if not ids else self._encoder.is_control(ids[-1])
        return {"ids": ids}


class _Encoder:
    """Cuts out control tokens and user-defined tokens, and has the library encode what lies between them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._control_ids, self._user_ids = vocabulary.control_tokens(), vocabulary.user_tokens()
        if vocabulary.is_sentencepiece:
            # Matched in the text as SentencePiece has it; GGUF has spaces in these tokens, SentencePiece not.
            self._user_ids = {text.replace(" ", SPACE): token_id for text, token_id in self._user_ids.items()}
        if vocabulary.algorithm == "unigram":
            self._user_ids = {}  # they are in the library's model
        self._control, self._user = ControlTokens(self._control_ids), ControlTokens(self._user_ids)
        self._control_numbers = frozenset(self._control_ids.values())
        self._byte_ids = vocabulary.byte_ids()
        self._missing_id = len(vocabulary.tokens)  # the library's id of what has no token
        self._library = _library(vocabulary)
        self._normaliser = normalizers.Precompiled(vocabulary.normaliser) if vocabulary.normaliser else None

    def describe(self, vocab_size: int) -> dict[str, Any]:
        """Bytes of the tokens below ``vocab_size`` as Latin-1 text, control tokens, and a bound for a token's bytes."""
        table = self._vocabulary.token_bytes()
        # What stands for any number of unknown characters has no bound, and what is removed has no token.
        has_bound = self._vocabulary.unknown_id is None or len(self._byte_ids) == 256
        has_bound &= not (self._vocabulary.collapse_spaces or self._vocabulary.normaliser)
        lengths = [len(token) for token in table if token] + [len(text.encode()) for text in self._control_ids]
        return {
            "tokens": [None if token is None else token.decode("latin-1") for token in table[:vocab_size]],
            "special": {text: token_id for text, token_id in self._control_ids.items() if token_id < vocab_size},
            "longest_token_bytes": max(lengths, default=1) if has_bound else None,
            "space_prefix": self._vocabulary.space_prefix,
        }

    def is_control(self, token_id: int) -> bool:
        """Whether it is the id of a control token."""
        return token_id in self._control_numbers

    def encode(self, text: str, parse_special: bool, first: bool) -> list[int]:
        """Ids of a text that begins a sequence or lies behind a control token (``first``), or behind other text."""
        ids: list[int] = []
        for number, part in enumerate(self._control.split(text) if parse_special else [text]):
            if number % 2:
                ids.append(self._control_ids[part])
                first = True
            elif part:
                self._add_text(ids, part, first)
                first = False
        return ids

    def _add_text(self, ids: list[int], text: str, first: bool) -> None:
        if self._vocabulary.is_sentencepiece:
            text = self._spaced(text, first)
        for number, part in enumerate(self._user.split(text)):
            if number % 2:
                ids.append(self._user_ids[part])
            elif part:
                found = self._library.encode(part, add_special_tokens=False)
                if self._missing_id in found.ids:
                    self._add_with_bytes(ids, part, found)
                else:
                    ids += found.ids

    def _spaced(self, text: str, first: bool) -> str:
        """The text with SentencePiece's character for spaces."""
        if self._normaliser is not None:
            text = self._normaliser.normalize_str(text)
        if self._vocabulary.collapse_spaces:
            text = _RUN.sub(" ", text).strip(" ")
        if self._vocabulary.space_prefix and first and text:
            text = " " + text
        return text.replace(" ", SPACE)

    def _add_with_bytes(self, ids: list[int], text: str, found: Any) -> None:
        """Add the ids, and the tokens of the bytes of what has no token, or the one for unknown text."""
        unknown = self._vocabulary.unknown_id
        for token_id, (begin, end) in zip(found.ids, found.offsets, strict=True):
            if token_id != self._missing_id:
                ids.append(token_id)
                continue
            in_bytes = text[begin:end].encode()
            if self._vocabulary.is_sentencepiece and all(byte in self._byte_ids for byte in in_bytes):
                ids += [self._byte_ids[byte] for byte in in_bytes]
            elif unknown is not None:
                ids.append(unknown)
            else:
                raise Refused(f"the vocabulary has no token for a byte of U+{ord(text[begin]):04X}")


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What the library returns."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class _RankTokenizer:
    """tiktoken, whose ids begin with the ordinary tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = [token_id for token_id, kind in enumerate(vocabulary.types) if kind == TokenType.NORMAL]
        ranks = {from_alphabet(vocabulary.tokens[token_id]): rank for rank, token_id in enumerate(self._ids)}
        (pattern,) = vocabulary.splits
        self._library = tiktoken.Encoding("ranks", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str, *, add_special_tokens: bool) -> _Encoding:
        return _Encoding([self._ids[rank] for rank in self._library.encode_ordinary(text)], [])


def _library(vocabulary: Vocabulary) -> Any:
    """Build the library's tokenizer of the ordinary tokens; the others have names that no text has (it has no NUL)."""
    if vocabulary.algorithm == "ranks":
        return _RankTokenizer(vocabulary)
    ordinary = [
        token if kind == TokenType.NORMAL else f"\0{token_id}"
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    ]
    missing = "\0"
    if vocabulary.algorithm == "unigram":
        pieces = [*zip(_with_user_tokens(vocabulary, ordinary), vocabulary.scores, strict=True)]
        unknown = (missing, min(vocabulary.scores))
        return Tokenizer(models.Unigram([*pieces, unknown], unk_id=len(ordinary), byte_fallback=False))
    ids: dict[str, int] = {}
    for token_id, token in enumerate(ordinary):
        ids.setdefault(token, token_id)
    merges = _merges_by_score(vocabulary, ids) if vocabulary.algorithm == "scored_bpe" else vocabulary.merges
    known = [(left, right) for left, right in merges if left in ids and right in ids and left + right in ids]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={**ids, missing: len(ordinary)},
            merges=known,
            unk_token=missing,
            fuse_unk=vocabulary.is_sentencepiece,
            ignore_merges=vocabulary.whole_words_first,
        )
    )
    if vocabulary.splits:
        cuts = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in vocabulary.splits]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
    return tokenizer


def _with_user_tokens(vocabulary: Vocabulary, ordinary: list[str]) -> list[str]:
    """The names with the texts of user-defined tokens: in a unigram model their score, 0, is better than any other."""
    found = list(ordinary)
    for text, token_id in vocabulary.user_tokens().items():
        found[token_id] = text.replace(" ", SPACE)
    return found


def _merges_by_score(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the highest score of the result first.

    Source: https://github.com/google/sentencepiece/blob/master/src/bpe_model.cc, which merges the pair whose
    result has the highest score. Differs from it only where two pairs make the same token of overlapping text.
    """
    merges: list[tuple[str, str]] = []
    for token, token_id in sorted(ids.items(), key=lambda item: (-vocabulary.scores[item[1]], item[1])):
        if token[:1] == "\0" or vocabulary.types[token_id] != TokenType.NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((left, right))
    return merges


def main(memory_bytes: int, readable: Sequence[Path]) -> None:
    serve(Codec().handle, memory_bytes, readable)
