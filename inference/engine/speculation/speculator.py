"""Speculator: guesses before a step, and what becomes of them after it. The engine talks to this class only.

A request with k guesses computes 1 + k tokens in a step, a chunk like any other, beside decodes and prompts. Its rows
say what the sampler would have chosen at each position; the guesses hold as far as they say the same (``acceptance``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from inference.engine.memory_errors import is_memory_error
from inference.engine.running_request import Request, RequestStatus
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.engine.speculation.accounts import Accounts, Candidate, Verified
from inference.engine.speculation.odds import Record
from inference.engine.speculation.proposer import Guesses, Proposer
from inference.engine.speculation.rollback import Rollback
from inference.engine.speculation.stats import SpeculationStats
from inference.values.speculative_options import SpeculativeOptions

logger = logging.getLogger(__name__)

IDLE_STEPS = 8
"""Steps in vain for each one in which nobody looks for guesses then: the looking would be felt in short steps."""
MAX_REST = 4


class Speculator:
    """Guesses for one engine.

    Args:
        options: How.
        proposer: Who.
        rollback: For a model with recurrent layers; it has room for ``max_requests``.
        max_requests: Most to guess for in a step.
        clock: Seconds.
    """

    def __init__(
        self,
        options: SpeculativeOptions,
        proposer: Proposer,
        rollback: Rollback | None,
        *,
        max_requests: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._options = options
        self._max_requests = max_requests
        self._most = options.most_tokens
        self._proposer = proposer
        self._rollback = rollback
        self._clock = clock
        self._accounts = Accounts(
            self._most,
            is_adaptive=options.is_adaptive,
            priors=proposer.priors,
            replays=rollback is not None,
            has_hindsight=proposer.has_hindsight,
        )
        self._of: dict[Request, Record] = {}
        self._started = 0.0
        self._pending: Guesses = {}
        self._kinds: dict[Request, int] = {}
        self._decoding: dict[Request, Record] = {}
        self._verified: list[Verified] = []
        self._is_pure = True
        self._num_idle = 0
        self._rest = 0
        self._num_proposed = 0
        self._num_accepted = 0
        self._lengths = [0] * (self._most + 1)

    def propose(self, running: Sequence[Request]) -> Guesses:
        """Guess for the requests of the next step that decode, best-ranked first; begins a step."""
        if self._rest:
            return {}
        self._started = self._clock()
        self._forget_gone()
        decoding = [request for request in running if request.is_decoding]
        if not decoding or not self._accounts.is_open_for(len(decoding)):
            return {}
        wanted = self._wanted(decoding)
        self._num_idle = 0 if wanted else self._num_idle + 1
        if wanted:
            try:
                self._pending = self._proposer.propose(wanted)
            except Exception as error:
                if not is_memory_error(error):
                    raise
                logger.warning("guessing for %d requests ran out of memory: %s", len(wanted), error)
        return self._pending

    def begin(self, step: SchedulerOutput) -> None:
        """The step is about to be computed: keep the states that may have to come back."""
        if self._rest:
            self._accounts.note_tokens(step.num_decodes, step.num_decodes)
            return
        # Also those that were admitted just now and found all but their last token in the prefix cache.
        decoding = [item.request for item in step.scheduled if item.request.is_decoding]
        self._decoding = {request: self._record(request) for request in decoding}
        self._is_pure = len(self._decoding) == len(step.scheduled)
        if self._rollback is not None:
            for item in step.scheduled:
                if item.draft_token_ids:
                    self._rollback.save(item.request)

    def settle(self, item: ScheduledRequest, num_computed: int) -> None:
        """Advance a request of the step, or take it back to where its state is right.

        Args:
            item: With guesses or without.
            num_computed: Tokens that hold among those whose state the step has reached; what the request's
                ``token_ids`` have beyond them is to be computed next.
        """
        request = item.request
        if num_computed < item.stop and self._rollback is not None:
            self._rollback.restore(request)
        else:
            request.num_computed_tokens = num_computed
        if self._rest:
            if request.num_to_replay:  # it had no room in the steps before
                request.num_to_replay = request.num_uncomputed_tokens - 1
            return
        record = self._decoding.get(request)
        if record is None:
            return
        request.num_to_replay = request.num_uncomputed_tokens - 1
        num_guessed = len(item.draft_token_ids)
        num_accepted = num_guessed - (item.stop - num_computed)
        if num_guessed:
            self._num_proposed += num_guessed
            self._num_accepted += num_accepted
            self._lengths[num_accepted] += 1
        if request in self._pending:
            self._settle_guesses(request, num_accepted)
        if item.num_tokens > 1:
            kind = self._kinds.get(request, 0)
            self._verified.append(Verified(record, kind, item.num_tokens - 1, num_guessed, num_accepted))

    def end(self, *, is_complete: bool = True) -> None:
        """The step is over.

        Args:
            is_complete: False: it broke off.
        """
        if self._rest:
            self._rest -= 1
            return
        for request in list(self._pending):
            self._settle_guesses(request, 0)
        if self._rollback is not None:
            self._rollback.drop_all()
        num_read, reading_s = self._proposer.take_reading()
        if num_read:
            self._accounts.note_reading(num_read, reading_s, len(self._decoding))
        if is_complete:
            seconds = self._clock() - self._started - reading_s
            self._accounts.settle(list(self._decoding.values()), self._verified, seconds, is_pure=self._is_pure)
        if not self._verified:
            self._rest = min(MAX_REST, self._num_idle // IDLE_STEPS) if self._options.is_adaptive else 0
        self._decoding, self._kinds = {}, {}
        self._verified = []

    def stats(self) -> SpeculationStats:
        """A snapshot of the counters."""
        return SpeculationStats(
            method=self._options.method,
            num_proposed=self._num_proposed,
            num_accepted=self._num_accepted,
            lengths=tuple(self._lengths),
            state_bytes=self._proposer.state_bytes,
        )

    def _wanted(self, decoding: Sequence[Request]) -> dict[Request, int]:
        """How far to guess for whom."""
        self._kinds = {}
        candidates: dict[Request, Candidate] = {}
        for request in decoding:
            # The last token is never computed, so nothing is gained by guessing it. A constraint goes forward only.
            most = request.max_tokens - request.num_output_tokens - 1
            if most <= 0 or request.sampling.constraint is not None:
                continue
            # What is computed again comes on top; a step without guesses then gets it over with.
            if request.num_to_replay > self._most:
                continue
            kind = self._proposer.kind_of(request)
            if kind is None:
                continue
            record = self._record(request)
            record.grow(request.num_output_tokens)
            self._kinds[request] = kind
            candidates[request] = Candidate(record, kind, most)
            if len(candidates) == self._max_requests:
                break
        for seen in self._proposer.take_hindsight():
            self._accounts.note_hindsight(self._record(seen.request), seen.kind, seen.num_guessed, seen.num_accepted)
        return self._choose(candidates, len(decoding))

    def _choose(self, candidates: dict[Request, Candidate], num_decoding: int) -> dict[Request, int]:
        """Those of the candidates for whom it pays, or shall be tried."""
        lengths = self._accounts.lengths(list(candidates.values()), num_decoding)
        wanted = {request: length for request, length in zip(candidates, lengths, strict=True) if length}
        unread = {request: count for request in wanted if (count := self._proposer.num_unread(request))}
        if not unread:
            return wanted
        read = {
            request
            for request, count in unread.items()
            if self._accounts.may_read(candidates[request], count, num_decoding)
        }
        if len(read) == len(unread):
            return wanted
        # Fewer share the cost of the step, so it may not pay any more; but what is read shall guess once.
        left = {request: candidates[request] for request in wanted if request in read or request not in unread}
        lengths = self._accounts.lengths(list(left.values()), num_decoding)
        wanted = {}
        for request, length in zip(left, lengths, strict=True):
            if length or request in read:
                wanted[request] = max(1, length)
        return wanted

    def _record(self, request: Request) -> Record:
        record = self._of.get(request)
        if record is None:
            record = self._of[request] = Record()
        return record

    def _settle_guesses(self, request: Request, num_accepted: int) -> None:
        del self._pending[request]
        self._proposer.settle(request, num_accepted)

    def _forget_gone(self) -> None:
        """Requests that ended or lost their state since the last step."""
        for request in [request for request in self._of if request.status is not RequestStatus.RUNNING]:
            self._proposer.forget(request)
            if request.status is RequestStatus.FINISHED:
                del self._of[request]
                self._accounts.note_end(request.num_output_tokens)
