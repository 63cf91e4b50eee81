"""A tokenizer as llguidance reads it: the bytes of every id, and how a text is best said in them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from inference.errors import BlazrError
from inference.text.tokenisation.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_FORCED_TEXTS = 4096
MAX_STRADDLING = 256
MAX_WIDE_MASKS = 256

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]


class GrammarVocabulary:
    """Made once for a loaded model.

    Control tokens (but visible ones) and ends of sequence stand for no text here. One more id, ``size``, is
    llguidance's end of sequence: a vocabulary may have several such ids, or none.

    Args:
        visible_ids: Control tokens that stand for their text.

    Attributes:
        size: Ids of the model.
        is_complete: Whether there is a token for each byte, so that any text can be said.
        ll: The same for llguidance.
    """

    def __init__(self, tokenizer: Tokenizer, visible_ids: frozenset[int] = frozenset()) -> None:
        self.visible_ids = visible_ids
        self.size = tokenizer.vocab_size
        self.eos_token_ids = tuple(token for token in tokenizer.eos_token_ids if token < self.size)
        self._tokenizer = tokenizer
        self._bytes = [tokenizer.token_bytes(token_id) for token_id in range(self.size)]
        silent = (tokenizer.special_ids - visible_ids) | frozenset(self.eos_token_ids)
        self._texts = [b"" if number in silent else data for number, data in enumerate(self._bytes)]
        self.is_complete = len({data for data in self._texts if len(data) == 1}) == 256
        self._refused: dict[bytes, Ids] = {}
        self._encoded = functools.lru_cache(MAX_FORCED_TEXTS)(self._encode_uncached)
        self._straddling = functools.lru_cache(MAX_STRADDLING)(self._straddling_uncached)
        self.ll = LLTokenizer(
            _Wrapper(self, [*self._texts, b"\xffend"]),  # type: ignore[arg-type]
            slices=LLTokenizer.json_slices(),
        )

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text; a control token as it is written."""
        return self._bytes[token_id]

    def encode_text(self, text: str) -> list[int]:
        """Ids whose bytes are the text's, as the model's own tokenizer puts it where it can.

        llguidance allows only the first of them where a grammar leaves one text.
        """
        return list(self._encoded(text))

    def straddling(self, text: str, num_seen: int) -> Ids:
        """Ids that complete ``text`` when its first ``num_seen`` bytes are there, and go on behind it (with more than
        white space)."""
        return self._straddling(text, num_seen)

    def refused(self, allowed: Bits) -> Ids:
        """The ids whose bits aren't set. Where most are, the same masks come again and again: insides of strings."""
        key = allowed.tobytes()
        found = self._refused.get(key)
        if found is None:
            inverted = np.invert(allowed)
            inverted[-1] &= (1 << self.size % 32) - 1
            found = ids_of(inverted, (inverted != 0).nonzero()[0])
            if len(self._refused) >= MAX_WIDE_MASKS:
                self._refused.clear()
            self._refused[key] = found
        return found

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        expected = text.encode()
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False, parse_special=bool(self.visible_ids))
        except BlazrError as error:
            logger.warning("a grammar's text could not be tokenised: %s", error.message)
            ids = []
        if b"".join(self._texts[token_id] for token_id in ids) != expected:
            # Some tokenizers put a space before a text.
            ids = self.ll.greedy_tokenize(text)
        return tuple(ids)

    def _straddling_uncached(self, text: str, num_seen: int) -> Ids:
        rest = text.encode()[num_seen:]
        found = []
        for token_id, data in enumerate(self._bytes):
            at = data.find(rest) if num_seen == 0 else (0 if data.startswith(rest) else -1)
            if at >= 0 and data[at + len(rest) :].strip():
                found.append(token_id)
        return np.array(found, dtype=np.int64)


class _Wrapper:
    """What ``LLTokenizer`` asks of a tokenizer (llguidance's ``TokenizerWrapper``)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        return self._vocabulary.encode_text(text.decode() if isinstance(text, bytes) else text)


def ids_of(bits: Bits, words: npt.NDArray[np.intp]) -> Ids:
    """Positions of the bits that are set, all of them in the named words."""
    found = np.unpackbits(bits[words].view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
    ids: Ids = words[found >> 5] * 32 + (found & 31)
    return ids
