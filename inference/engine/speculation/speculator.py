"""Speculator: draft tokens before a step, and accept or reject them after it.

The engine uses this class only. A request with k draft tokens computes a chunk of 1 + k tokens in a step, beside
decodes and prompts. The sampler draws a token at each row of the chunk, and the draft tokens that equal the sampled
ones are accepted (``acceptance``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from inference.engine.device import is_memory_error
from inference.engine.running_request import Request
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.engine.speculation.policy import DraftingCosts, DraftingPolicy
from inference.engine.speculation.proposer import Drafts, Proposer
from inference.engine.speculation.rollback import Rollback
from inference.engine.speculation.stats import SpeculationStats
from inference.values.speculative_options import SpeculativeOptions

logger = logging.getLogger(__name__)


class Speculator:
    """Draft and verify tokens for one engine.

    Args:
        options: The method and the number of draft tokens.
        proposer: Proposes draft tokens.
        rollback: Rollback of a model with recurrent layers, with ``max_num_drafting`` spare slots; otherwise None.
        costs: What drafting costs.
        max_num_drafting: Maximum requests that draft in a step.
    """

    def __init__(
        self,
        options: SpeculativeOptions,
        proposer: Proposer,
        rollback: Rollback | None,
        costs: DraftingCosts,
        *,
        max_num_drafting: int,
    ) -> None:
        self._method = options.method
        self._num_tokens = options.max_draft_tokens
        self._max_num_drafting = max_num_drafting
        self._proposer = proposer
        self._rollback = rollback
        self._policy = DraftingPolicy(self._num_tokens, costs, is_adaptive=options.is_adaptive)
        self._requests: set[Request] = set()
        self._drafts: Drafts = {}
        self._num_decoding = 0
        self._has_verified = False
        self._num_proposed = 0
        self._num_accepted = 0
        self._lengths = [0] * (self._num_tokens + 1)

    def propose(self, running: Sequence[Request]) -> Drafts:
        """Begin a step, and draft tokens for its decoding requests, best-ranked first."""
        self._forget_stopped()
        decoding = [request for request in running if request.is_decoding]
        self._num_decoding = len(decoding)
        limits: dict[Request, int] = {}
        for request in decoding:
            limit = self._limit(request)
            if limit > 0 and self._policy.can_draft(request, len(decoding)):
                self._requests.add(request)
                if self._proposer.can_propose(request):
                    limits[request] = limit
            if len(limits) == self._max_num_drafting:
                break
        if limits and self._policy.has_speedup(list(limits), len(decoding)):
            try:
                self._drafts = self._proposer.propose(limits)
            except Exception as error:
                if not is_memory_error(error):
                    raise
                logger.warning("drafting for %d requests ran out of memory: %s", len(limits), error)
        return self._drafts

    def observe(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """Hand the (T, h) rows of a forward pass to the proposer."""
        self._requests.update(item.request for item in step.scheduled)
        try:
            self._proposer.observe(step, hidden)
        except Exception as error:
            if not is_memory_error(error):
                raise
            logger.warning("reading the rows of %d requests ran out of memory: %s", len(step.scheduled), error)

    def begin(self, step: SchedulerOutput) -> None:
        """Save the recurrent states that the step may have to restore."""
        if self._rollback is not None:
            for item in step.scheduled:
                if item.draft_token_ids:
                    self._rollback.save(item.request)

    def advance(self, item: ScheduledRequest, num_computed: int) -> None:
        """Advance a request after the step, or roll its state back if draft tokens were rejected.

        Args:
            item: The request's share of the step, with or without draft tokens.
            num_computed: Number of computed tokens without rejected draft tokens; later tokens of ``token_ids`` are
                computed next.
        """
        request, num_drafted = item.request, len(item.draft_token_ids)
        if num_computed < item.stop and self._rollback is not None:
            self._rollback.restore(request)
        else:
            request.num_computed_tokens = num_computed
        if item.num_sampled or request.num_to_replay:
            request.num_to_replay = request.num_uncomputed_tokens - 1
        num_accepted = num_drafted - (item.stop - num_computed)
        if num_drafted:
            self._has_verified = True
            self._num_proposed += num_drafted
            self._num_accepted += num_accepted
            self._lengths[num_accepted] += 1
            self._policy.record(request, num_drafted, num_accepted)
        if self._drafts.pop(request, None) is not None:
            self._proposer.accept(request, num_accepted)

    def end(self) -> None:
        """End a step, also a failed one."""
        for request in self._drafts:
            self._proposer.accept(request, 0)
        self._drafts = {}
        if self._rollback is not None:
            self._rollback.drop_all()
        self._policy.end_step(has_verified=self._has_verified, num_decoding=self._num_decoding)
        self._has_verified = False

    def stats(self) -> SpeculationStats:
        """Return the current counters."""
        return SpeculationStats(
            method=self._method,
            num_proposed=self._num_proposed,
            num_accepted=self._num_accepted,
            lengths=tuple(self._lengths),
            state_bytes=self._proposer.state_bytes,
        )

    def _limit(self, request: Request) -> int:
        """Return the maximum draft tokens of a request in this step; 0: it can't draft."""
        # Some states can't be rolled back. Many tokens to replay are first computed without draft tokens.
        if not request.can_write_cache or request.sampling.is_forward_only or request.num_to_replay > self._num_tokens:
            return 0
        # The state of the last token is never computed, so drafting it gains nothing.
        return min(self._num_tokens, request.max_length - len(request.token_ids) - 1)

    def _forget_stopped(self) -> None:
        """Drop the proposer's part of requests without state, and all of those that have ended."""
        for request in [request for request in self._requests if not request.is_running]:
            self._proposer.forget(request)
            if request.has_ended:  # a preempted one keeps its acceptance rate
                self._requests.remove(request)
                self._policy.forget(request)
