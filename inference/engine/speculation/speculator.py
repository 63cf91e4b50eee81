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
from inference.engine.speculation.accounts import Account, Accounts, Verified
from inference.engine.speculation.proposer import Guesses, Proposer
from inference.engine.speculation.rollback import Rollback
from inference.engine.speculation.stats import SpeculationStats
from inference.speculative_options import SpeculativeOptions

logger = logging.getLogger(__name__)


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
        self._accounts = Accounts(self._most, is_adaptive=options.is_adaptive)
        self._of: dict[Request, Account] = {}
        self._started = 0.0
        self._pending: Guesses = {}
        self._decoding: dict[Request, Account] = {}
        self._verified: list[Verified] = []
        self._is_pure = True
        self._num_proposed = 0
        self._num_accepted = 0
        self._lengths = [0] * (self._most + 1)

    def propose(self, running: Sequence[Request]) -> Guesses:
        """Guess for the requests of the next step that decode, best-ranked first; begins a step."""
        self._started = self._clock()
        self._forget_gone()
        decoding = [request for request in running if request.is_decoding]
        if not decoding or not self._accounts.is_open_for(len(decoding)):
            return {}
        wanted: dict[Request, int] = {}
        for request in decoding:
            if request.sampling.constraint is not None:
                continue  # a constraint goes forward only
            account = self._account(request)
            # The last token is never computed, so nothing is gained by guessing it.
            count = min(
                self._accounts.affordable(account, len(decoding)), request.max_tokens - request.num_output_tokens - 1
            )
            # What is computed again comes on top; a step without guesses then gets it over with.
            if count > 0 and request.num_to_replay <= self._most:
                wanted[request] = count
                if len(wanted) == self._max_requests:
                    break
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
        # Also those that were admitted just now and found all but their last token in the prefix cache.
        decoding = [item.request for item in step.scheduled if item.request.is_decoding]
        self._decoding = {request: self._account(request) for request in decoding}
        self._is_pure = len(self._decoding) == len(step.scheduled)
        if self._rollback is not None:
            for item in step.scheduled:
                if item.guesses:
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
        account = self._decoding.get(request)
        if account is None:
            return
        request.num_to_replay = request.num_uncomputed_tokens - 1
        num_guessed = len(item.guesses)
        num_accepted = num_guessed - (item.stop - num_computed)
        if num_guessed:
            self._num_proposed += num_guessed
            self._num_accepted += num_accepted
            self._lengths[num_accepted] += 1
        if request in self._pending:
            self._settle_guesses(request, num_accepted)
        if item.num_tokens > 1:
            self._verified.append(Verified(account, item.num_tokens - 1, num_guessed, num_accepted))

    def end(self, *, is_complete: bool = True) -> None:
        """The step is over.

        Args:
            is_complete: False: it broke off.
        """
        for request in list(self._pending):
            self._settle_guesses(request, 0)
        if self._rollback is not None:
            self._rollback.drop_all()
        setup_s = self._proposer.take_setup_s()
        if setup_s:
            self._accounts.charge_setup(len(self._decoding), setup_s)
        if is_complete:
            seconds = self._clock() - self._started - setup_s
            self._accounts.settle(list(self._decoding.values()), self._verified, seconds, is_pure=self._is_pure)
        self._decoding = {}
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

    def _account(self, request: Request) -> Account:
        account = self._of.get(request)
        if account is None:
            account = self._of[request] = self._accounts.open()
        return account

    def _settle_guesses(self, request: Request, num_accepted: int) -> None:
        del self._pending[request]
        self._proposer.settle(request, num_accepted)

    def _forget_gone(self) -> None:
        """Requests that ended or lost their state since the last step."""
        for request in [request for request in self._of if request.status is not RequestStatus.RUNNING]:
            self._proposer.forget(request)
            if request.status is RequestStatus.FINISHED:
                self._accounts.close(self._of.pop(request))
