"""GrammarConstraint: follows one output through its grammar. Implements the engine's ``TokenConstraint``."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher

from inference.text.grammars.rules import reason
from inference.text.grammars.vocabulary import GrammarVocabulary, Ids, ids_of
from inference.values.token_constraint import TokenMask

MASK_S = 2.0
MASK_S_PER_TOKEN = 0.02
"""Processor time that the masks of one output may take: so much, and so much more for each token. Batches wait for
masks, so a grammar that takes longer is given up."""
MAX_FORCED = 64
"""Tokens of a text without choice that are taken in at once."""


class GrammarConstraint:
    """The state of one output. One thread at a time.

    Args:
        matcher: At the grammar's beginning, for this output alone.
        stop_ids: Ids that end the output where the grammar is complete.
        after: The grammar begins behind this text; empty: at once.

    Attributes:
        error: Why the output can't go on; None: it can.
        must_end: Whether nothing but the end is allowed; of the last ``mask``.
    """

    def __init__(
        self, vocabulary: GrammarVocabulary, matcher: LLMatcher, *, stop_ids: Iterable[int], after: str = ""
    ) -> None:
        self.error: str | None = None
        self.must_end = False
        self._vocabulary = vocabulary
        self._matcher = matcher
        ids = {token_id for token_id in stop_ids if token_id < vocabulary.size}
        self._stop_ids = np.array(sorted(ids), dtype=np.int64)
        self._ends = ids | set(vocabulary.eos_token_ids)
        self._end_ids = np.array(sorted(self._ends), dtype=np.int64)
        self._after, self._after_bytes = after, after.encode()
        self._tail = b""
        self._forced: list[int] = []  # the last comes first
        self._has_looked_ahead = False
        self._has_ended = False
        self._num_tokens = 0
        self._mask_s = 0.0
        # Only the last bit is the end, so that the ids of a mask are those of the model.
        self._bits = np.zeros(vocabulary.size // 32 + 1, dtype=np.uint32)
        self._bits_address = self._bits.ctypes.data
        self._mask: TokenMask | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing can follow."""
        if self._after or self._forced or self.error is not None:
            return False
        if self._has_ended or (self._matcher.is_stopped() and self._matcher.is_accepting()):
            return True
        if len(self._end_ids) or not self._matcher.is_accepting():
            return False
        # No id says that this is the end, so it has to be found out.
        mask = self.mask()
        return mask.allows and not len(mask.ids)

    def mask(self) -> TokenMask:
        """Which tokens may follow; means nothing with an ``error``."""
        if self._mask is None:
            self._look_ahead()
            if self._forced:
                self.must_end = False
                self._mask = TokenMask(np.array(self._forced[-1:], dtype=np.int64), allows=True)
            elif self._after:
                self._mask = self._mask_before()
            else:
                begun = time.thread_time()
                self._mask = self._mask_within()
                self._record_time(time.thread_time() - begun)
        return self._mask

    def allows(self, token_id: int) -> bool:
        """Whether ``mask`` has the id among those that may follow; means nothing with an ``error``.

        One id goes through the grammar in a tenth of the time that all of them take.
        """
        self._look_ahead()
        if self._forced:
            return token_id == self._forced[-1]
        # Where the mask says more than the grammar does, it is asked.
        if self._mask is not None or self._after or token_id in self._ends or not self._vocabulary.is_complete:
            mask = self.mask()
            at = int(np.searchsorted(mask.ids, token_id))
            return mask.allows == (at < len(mask.ids) and int(mask.ids[at]) == token_id)
        return token_id < self._vocabulary.size and self._matcher.validate_tokens([token_id]) == 1

    def accept(self, token_id: int) -> None:
        self._mask = None
        self._num_tokens += 1
        if self._forced:
            if self._forced.pop() != token_id:
                self._fail("a token was taken that it doesn't allow")
            self._has_looked_ahead = bool(self._forced)
            return
        self._has_looked_ahead = False
        if self._after:
            self._look_for_start(token_id)
        elif token_id in self._ends:
            self._has_ended = True
        elif not self._matcher.consume_token(token_id):
            self._fail(reason(self._matcher.get_error()))

    def _look_for_start(self, token_id: int) -> None:
        self._tail += self._vocabulary.token_bytes(token_id)
        if self._after_bytes in self._tail:
            self._after, self._tail = "", b""
        else:
            self._tail = self._tail[-len(self._after_bytes) :]

    def _mask_before(self) -> TokenMask:
        """Before the grammar's start: all but the end, and tokens that begin the grammar's text on their own."""
        refused = [self._end_ids]
        for count in range(len(self._after_bytes)):
            if self._tail.endswith(self._after_bytes[:count]):
                refused.append(self._vocabulary.straddling(self._after, count))
        return TokenMask(np.unique(np.concatenate(refused)), allows=False)

    def _mask_within(self) -> TokenMask:
        self._matcher.unsafe_compute_mask_ptr(self._bits_address, self._bits.nbytes)
        if self._matcher.is_error():
            self._fail(reason(self._matcher.get_error()))
        size = self._vocabulary.size
        can_end = bool(self._bits[-1] >> (size % 32) & 1)
        self._bits[-1] &= (1 << size % 32) - 1
        words = (self._bits != 0).nonzero()[0]  # of booleans: a third of the time
        self.must_end = can_end and not len(words)
        ends = self._end_ids if self.must_end else self._stop_ids
        if 2 * len(words) < len(self._bits):
            allowed = ids_of(self._bits, words)
            self._check_sayable(allowed)
            return TokenMask(np.union1d(allowed, ends) if can_end else allowed, allows=True)
        self._check_sayable(words[:1] * 32 + int(self._bits[words[0]]).bit_length() - 1)
        refused = self._vocabulary.refused(self._bits)
        return TokenMask(np.setdiff1d(refused, ends) if can_end else refused, allows=False)

    def _check_sayable(self, allowed: Ids) -> None:
        """Where a grammar leaves one text and the vocabulary can't say it, llguidance's mask is one for behind it."""
        if not self._vocabulary.is_complete and len(allowed) and not self._matcher.validate_tokens([int(allowed[0])]):
            self._fail("the model's vocabulary has no tokens for what it asks for")

    def _look_ahead(self) -> None:
        """Where the grammar leaves one text, take its tokens in at once: until they are through, nothing is asked.

        The text is to be said as the model says it, so these tokens are all that a mask would allow.
        """
        if self._has_looked_ahead or self._after or not self._vocabulary.is_complete:
            return
        self._has_looked_ahead = True
        begun = time.thread_time()
        forced = self._matcher.compute_ff_tokens()[:MAX_FORCED]
        if forced and not self._matcher.consume_tokens(forced):
            self._fail(reason(self._matcher.get_error()))
        self._forced = forced[::-1]
        self._record_time(time.thread_time() - begun)

    def _record_time(self, seconds: float) -> None:
        self._mask_s += seconds
        if self._mask_s > MASK_S + MASK_S_PER_TOKEN * self._num_tokens:
            self._fail("the grammar takes too much time to follow; write a simpler one")

    def _fail(self, message: str) -> None:
        self.error = self.error or message
