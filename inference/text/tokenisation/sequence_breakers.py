"""Find the texts over which no match of the DRY penalty reaches, in the tokens of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from inference.text.tokenisation.tokenizer import Tokenizer


class TextBreakers:
    """Implements the engine's ``SequenceBreakers`` by the bytes that tokens stand for. Holds no state."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._breakers = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._longest = max(map(len, self._breakers), default=0)

    def ends_at(self, token_ids: Sequence[int], stop: int) -> bool:
        """Whether a breaker ends within the token before position ``stop``."""
        written = self._tokenizer.token_bytes(int(token_ids[stop - 1]))
        num_new, start = len(written), stop - 1
        while start > 0 and len(written) - num_new < self._longest - 1:
            start -= 1
            written = self._tokenizer.token_bytes(int(token_ids[start])) + written
        num_old = len(written) - num_new
        # An occurrence that ends before the last token begins was found with an earlier token.
        return any(
            written.find(breaker, max(0, num_old - len(breaker) + 1)) >= 0 for breaker in self._breakers if num_new
        )
