"""Detokenizer: tokens in, text out, piece by piece.

What it has emitted after some tokens depends on these tokens alone, never on how they were grouped; so a second
attempt that feeds it the tokens of the first goes on exactly where the client's text ended. All pieces
together are the text that decoding the whole sequence gives, up to the stop string.
"""

from __future__ import annotations

import codecs

from inference.text.tokenisation.stop_strings import StopStrings
from inference.text.tokenisation.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one choice.

    Bytes that may be the beginning of a character, and text that may be the beginning of a stop string, are
    held back until they are decided.

    Args:
        tokenizer: Gives each token's bytes.
        skip_special_tokens: Control tokens add no text.
        visible_ids: Control tokens that add their text all the same.
        stop: Strings that end the text. A control token's own text among them ends it too when skipped.
        min_tokens: Stop strings that end within the first so many tokens are ignored.
        at_start: The text has no predecessor, so that rules for the beginning of a text apply (a prompt of
            control tokens only counts as none).

    Attributes:
        stop_reason: The stop string that was found; then the text has ended.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        stop: StopStrings | None = None,
        include_stop_str: bool = False,
        min_tokens: int = 0,
        at_start: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids - visible_ids if skip_special_tokens else frozenset()
        self._stop = stop if stop else None
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._first = at_start
        self._lead_left = tokenizer.max_lead if at_start else 0
        self._decoder = _UTF8("replace")
        self._has_begun = False  # a character
        self._pending = ""  # decoded, may begin a stop string
        self._state = 0
        self.stop_reason: str | None = None
        self.num_tokens = 0

    def push(self, token_id: int) -> str:
        """Take a token and return the text that is certain now; nothing after a stop string."""
        if self.stop_reason is not None:
            return ""
        text = self.push_whole(token_id)  # almost always
        if text is not None:
            return text
        self.num_tokens += 1
        tokenizer = self._tokenizer
        if tokenizer.is_missing(token_id):
            return ""
        if token_id in self._skipped_ids:
            return self._skip(token_id)
        data = tokenizer.token_bytes(token_id, first=self._first)
        self._first = False
        text = self._decoder.decode(data)
        self._has_begun = bool(self._decoder.getstate()[0])
        return self._take(text)

    def push_whole(self, token_id: int) -> str | None:
        """``push`` of a token whose text stands for itself, whatever comes before and behind it.

        Returns:
            The text; None: nothing was done, for it needs ``push``.
        """
        if self._stop is not None or self._has_begun or self._first or self._lead_left:
            return None
        text = self._tokenizer.whole_text(token_id)
        self.num_tokens += text is not None
        return text

    def flush(self) -> str:
        """End the text without a stop string and return what was held back; broken bytes read as U+FFFD."""
        if self.stop_reason is not None:
            return ""
        text = self._take(self._decoder.decode(b"", final=True))
        if self.stop_reason is None:
            text, self._pending = text + self._pending, ""
        return text

    def _skip(self, token_id: int) -> str:
        """A control token without text can still be what the request calls a stop string."""
        written = self._tokenizer.special_text(token_id)
        if self._stop is None or written not in self._stop.strings or self.num_tokens <= self._min_tokens:
            return ""
        text = self.flush()
        if self.stop_reason is None:
            self.stop_reason = written
            text += written if self._include_stop_str else ""
        return text

    def _take(self, text: str) -> str:
        while self._lead_left and text:
            if not text.startswith(self._tokenizer.lead):
                self._lead_left = 0
                break
            text = text[len(self._tokenizer.lead) :]
            self._lead_left -= 1
        stop = self._stop
        if stop is None or not text:
            return text
        begin = len(self._pending)
        pending = self._pending + text
        for position, char in enumerate(text, start=begin + 1):
            self._state = stop.step(self._state, char)
            length = stop.match(self._state)
            if length and self.num_tokens > self._min_tokens:
                self.stop_reason = pending[position - length : position]
                self._pending = ""
                return pending[: position if self._include_stop_str else position - length]
        certain = len(pending) - stop.held(self._state)
        self._pending = pending[certain:]
        return pending[:certain]
