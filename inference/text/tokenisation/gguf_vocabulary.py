"""Read the vocabulary of a GGUF file: tokens, types, scores, merges, pre-tokeniser, and the ids with a name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer. Defaults of keys that are missing are those
of llama.cpp's ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.gguf.container import GgufFile, read_gguf
from inference.text.tokenisation.pre_tokenisers import pre_tokeniser
from inference.text.tokenisation.vocabulary import TokenType, Vocabulary, control_types

MODELS = {"gpt2": "byte_bpe", "gemma4": "char_bpe", "llama": "scored_bpe", "t5": "unigram"}
"""``tokenizer.ggml.model`` and the algorithm it means."""
_NAMED = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask")  # "seperator" is how the key is spelt
_ENDS = ("eos", "eot", "eom")
_END_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<|call|>", "<turn|>")
"""Ends that files don't name: of texts, of a call of gpt-oss's, of Gemma 4's turns."""
_PREFIX = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A vocabulary with what the file states of its tokens.

    Attributes:
        model, pre: ``tokenizer.ggml.model`` and the pre-tokeniser in force (None: the model has none).
        pre_is_stated: Whether the file names the pre-tokeniser.
        ids: Ids by name: ``bos``, ``eos``, ``eot``, ``eom``, ``unknown``, ``padding``, …
        adds_bos: Whether the beginning-of-sequence token is put in front of a text.
        bos_is_stated: Whether the file says so itself.
        chat_template: Its source; None: the file has none.
    """

    vocabulary: Vocabulary
    model: str
    pre: str | None
    pre_is_stated: bool
    ids: Mapping[str, int]
    adds_bos: bool
    bos_is_stated: bool
    chat_template: str | None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a text or a turn, also the end of a text that a model learnt beside the end of a turn."""
        control = self.vocabulary.control_tokens()
        named = [self.ids[name] for name in _ENDS if name in self.ids]
        return tuple(dict.fromkeys([*named, *(control[text] for text in _END_TEXTS if text in control)]))


def has_vocabulary(file: GgufFile) -> bool:
    return file.keys.get(_PREFIX + "model") not in (None, "none", "no_vocab")


def read_gguf_vocabulary(path: Path) -> GgufVocabulary:
    """Read the vocabulary of a file, or of a set of parts whose first one this is.

    Raises:
        CorruptCheckpoint: It contradicts itself, or the file is broken.
        UnsupportedFormat: Its model or its pre-tokeniser isn't known.
    """
    file = read_gguf(path)
    model = file.keys.get(_PREFIX + "model")
    if not isinstance(model, str) or model not in MODELS:
        raise UnsupportedFormat(
            f"{path.name} has a vocabulary of the kind {str(model)[:40]!r} (tokenizer.ggml.model); read are "
            f"{', '.join(MODELS)}. Set vocabulary to a tokenizer.json of the model.",
            param="tokenizer.ggml.model",
        )
    tokens = tuple(_text(token, path) for token in file.strings(_PREFIX + "tokens"))
    ids = _ids(file, len(tokens))
    types = _integers(file, "token_type") or (TokenType.NORMAL,) * len(tokens)
    types = control_types(tokens, types, frozenset(ids.values()) - {ids.get("unknown", -1)})
    stated, pre, default_bos = file.keys.get(_PREFIX + "pre"), None, True
    if MODELS[model] == "byte_bpe":
        pre = stated if isinstance(stated, str) else "default"
        cut = pre_tokeniser(pre, path.name)
        vocabulary = Vocabulary(
            path.name,
            "byte_bpe",
            tokens,
            types,
            merges=_merges(file, path),
            splits=cut.splits,
            whole_words_first=cut.whole_words_first,
        )
        default_bos = cut.adds_bos
    elif MODELS[model] == "char_bpe":
        merges = _merges(file, path)
        vocabulary = Vocabulary(path.name, "char_bpe", tokens, types, merges=merges, unknown_id=_unknown(ids, types))
    else:
        vocabulary = Vocabulary(
            path.name,
            "unigram" if model == "t5" else "scored_bpe",
            tokens,
            types,
            scores=_scores(file),
            space_prefix=_flag(file, "add_space_prefix", True),
            collapse_spaces=_flag(file, "remove_extra_whitespaces", False),
            normaliser=bytes(byte & 0xFF for byte in _integers(file, "precompiled_charsmap")),
            unknown_id=_unknown(ids, types),
        )
        default_bos = model == "llama"
    template = file.keys.get("tokenizer.chat_template")
    return GgufVocabulary(
        vocabulary,
        model,
        pre,
        isinstance(stated, str),
        ids,
        "bos" in ids and _flag(file, "add_bos_token", default_bos),
        _PREFIX + "add_bos_token" in file.keys,
        template if isinstance(template, str) and template.strip() else None,
    )


def _text(token: bytes, path: Path) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise CorruptCheckpoint(
            f"{path.name} has the token {token[:40]!r}, which isn't UTF-8; convert the model again.",
            param="tokenizer.ggml.tokens",
        ) from None


def _integers(file: GgufFile, name: str) -> tuple[int, ...]:
    numbers = file.numbers(_PREFIX + name)
    whole = tuple(number for number in numbers if isinstance(number, int))
    if len(whole) != len(numbers):
        raise _wrong_array(file, name, "whole numbers are needed")
    return whole


def _scores(file: GgufFile) -> tuple[float, ...]:
    scores = tuple(map(float, file.numbers(_PREFIX + "scores")))
    wrong = next((score for score in scores if not math.isfinite(score)), None)
    if wrong is not None:
        raise _wrong_array(file, "scores", f"the score of token {scores.index(wrong)} is {wrong}")
    return scores


def _wrong_array(file: GgufFile, name: str, problem: str) -> CorruptCheckpoint:
    key = _PREFIX + name
    return CorruptCheckpoint(f"{file.path.name} has a wrong {key}: {problem}; convert the model again.", param=key)


def _unknown(ids: Mapping[str, int], types: tuple[int, ...]) -> int | None:
    return ids.get("unknown", types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else None)


def _merges(file: GgufFile, path: Path) -> tuple[tuple[str, str], ...]:
    return tuple(_merge(merge, path) for merge in file.strings(_PREFIX + "merges"))


def _merge(merge: bytes, path: Path) -> tuple[str, str]:
    left, separator, right = _text(merge, path).partition(" ")
    if not (left and separator and right):
        raise CorruptCheckpoint(
            f"{path.name} has the merge {merge[:40]!r}; two tokens with a space between them are expected.",
            param="tokenizer.ggml.merges",
        )
    return left, right


def _ids(file: GgufFile, count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in _NAMED:
        key = f"{_PREFIX}{name}_token_id"
        value = file.keys.get(key)
        if isinstance(value, bool) or (value is not None and not isinstance(value, int)):
            raise CorruptCheckpoint(f"{file.path.name} has {key} {str(value)[:40]!r}, which is no id.", param=key)
        # Converters write 2**32 - 1 for "none", and ids of tokens that a model doesn't have.
        if value is not None and 0 <= value < count:
            found[name] = value
    return found


def _flag(file: GgufFile, name: str, default: bool) -> bool:
    value = file.keys.get(_PREFIX + name)
    return value if isinstance(value, bool) else default
