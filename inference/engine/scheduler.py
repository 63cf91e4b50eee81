"""Scheduler: choose the requests of the next step, and how many tokens of each to compute.

Prefill and decode are the same: a request has uncomputed tokens, one when it decodes, more when its prompt is new or
must be recomputed. Each step computes some of them, under two budgets: the tokens of the step, and state (blocks,
slots, request indices).

Requests are ranked by (priority, arrival), lower first. Decodes get their token first, then prefills by priority, in
turns of callers. A request is admitted with blocks for all its known tokens, so that only decodes can run out of
blocks. The worst-ranked request is then preempted: it frees its state and is recomputed later. The best-ranked request
can take all state, and ``RequestChecks`` has refused requests that need more; so every step makes progress.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from inference.engine.config import EngineConfig
from inference.engine.prefill_order import Caller, PrefillOrder, caller_of
from inference.engine.prefix_cache.cache import PrefixCache
from inference.engine.prefix_cache.lookup import Match
from inference.engine.prefix_cache.stats import MissReason
from inference.engine.running_request import Request
from inference.engine.state_copies import StateCopies, StateCopy
from inference.engine.state_manager import SequenceState, StateManager
from inference.engine.token_budget import TokenBudget

_rank = attrgetter("rank")


class ScheduledRequest(NamedTuple):  # faster to create than a frozen dataclass
    """A request's share of a step: its next ``num_tokens`` uncomputed tokens.

    Attributes:
        reaches_end: Whether all known tokens are computed after the step.
        draft_token_ids: Draft tokens that the step verifies: the last of its tokens, not in the request's
            ``token_ids``.
    """

    request: Request
    num_tokens: int
    num_computed_tokens: int
    reaches_end: bool
    draft_token_ids: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Whether the share is one token on top of existing state."""
        return self.num_tokens == 1 and self.num_computed_tokens > 0

    @property
    def stop(self) -> int:
        """Number of computed tokens of the sequence after the step."""
        return self.num_computed_tokens + self.num_tokens

    @property
    def num_sampled(self) -> int:
        """Number of last rows with a sampled token: one for the known tokens, and one for each draft token."""
        return 1 + len(self.draft_token_ids) if self.reaches_end and self.request.known_ending is None else 0


def scheduled_request(request: Request, num_tokens: int, draft_token_ids: tuple[int, ...] = ()) -> ScheduledRequest:
    """Return a share of ``num_tokens`` tokens, draft tokens included, from the first uncomputed token."""
    reaches_end = num_tokens == request.num_uncomputed_tokens + len(draft_token_ids)
    return ScheduledRequest(request, num_tokens, request.num_computed_tokens, reaches_end, draft_token_ids)


class SchedulerOutput(NamedTuple):
    """One step's work: ``num_decodes`` decodes, then prefill chunks."""

    scheduled: Sequence[ScheduledRequest]
    num_decodes: int


class Scheduler:
    """Own the queue, the running requests and their state.

    Args:
        config: Budgets.
        states: Blocks, slots and request indices.
        cache: The prefix cache.
        copies: Copies of saved states; a request whose state is copied is neither waiting nor running.

    Attributes:
        waiting, running: Requests by rank; ``waiting`` by caller, so that a step needn't read the whole queue.
        num_preemptions: Number of preemptions so far.
        token_budget: Maximum tokens of the next step; lowered when memory runs out.
    """

    def __init__(self, config: EngineConfig, states: StateManager, cache: PrefixCache, copies: StateCopies) -> None:
        self.waiting: dict[Caller, list[Request]] = {}
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.token_budget = TokenBudget(config.max_num_batched_tokens)
        self._prefill_order = PrefillOrder()
        self._states = states
        self._cache = cache
        self._copies = copies

    def add(self, request: Request) -> None:
        """Put a request into the queue."""
        insort(self.waiting.setdefault(caller_of(request), []), request, key=_rank)

    def finish(self, request: Request) -> None:
        """Remove a waiting or running request and free its state."""
        if request.is_running:
            self._release(request, is_state_valid=not self._copies.drop(request))
        elif request in self.waiting.get(caller_of(request), ()):  # otherwise its prefix is still read from disk
            self._remove_waiting(request)
        request.has_ended = True

    def _remove_waiting(self, request: Request) -> None:
        queue = self.waiting[caller_of(request)]
        queue.remove(request)
        if not queue:
            del self.waiting[caller_of(request)]

    def read_out(self, request: Request) -> None:
        """Copy a running request's state out; it runs no more until ``take_copied`` returns it."""
        state = request.state
        assert state is not None
        self.running.remove(request)
        blocks = self._states.kv.blocks_of(state.index) if self._states.has_paged_state else ()
        self._copies.read(request, blocks, state.slot, request.source.prompt_token_ids)

    def take_copied(self) -> list[StateCopy]:
        """Let the requests run on whose copies have ended; the engine ends those whose copy failed or was read out."""
        done = self._copies.take_done()
        for copy in done:
            request, saved = copy.request, copy.request.source.saved_state
            insort(self.running, request, key=_rank)
            if copy.result.exception() is None and copy.result.result() is None:
                assert request.state is not None and request.cached is not None and saved is not None
                self._cache.keep_restored(request.cached, request.state.index, request.state.slot, saved)
                request.num_computed_tokens = len(saved.token_ids)
        return done

    def preempt(self, request: Request, *, is_state_valid: bool = True) -> None:
        """Free a running request's state and put it back into the queue, at its old rank.

        Args:
            is_state_valid: False: a failed step has advanced a part of its recurrent state.
        """
        self._release(request, is_state_valid=is_state_valid)
        request.num_computed_tokens = request.num_to_replay = 0
        self.add(request)
        self.num_preemptions += 1

    def schedule(self, drafts: Mapping[Request, Sequence[int]] = MappingProxyType({})) -> SchedulerOutput:
        """Choose the next step's tokens; allocate state and preempt, without advancing ``num_computed_tokens``.

        Args:
            drafts: Draft tokens to verify within the free capacity; no request is preempted for them.
        """
        scheduled = self._schedule_decodes()
        self._add_drafts(scheduled, drafts)
        self._schedule_prefills(scheduled)
        scheduled.sort(key=lambda item: not item.is_decode)
        return SchedulerOutput(scheduled, sum(item.is_decode for item in scheduled))

    def _schedule_decodes(self) -> list[ScheduledRequest]:
        """Give each running request that decodes its token, by rank."""
        scheduled: list[ScheduledRequest] = []
        left = self.token_budget.tokens
        # Only requests after the current one are preempted, from the end of the list.
        for number, request in enumerate(self.running):
            if left == 0:
                break
            if not request.is_decoding:
                continue
            count = 1
            if request.num_to_replay:
                # Reserve one token for each decode behind before tokens are replayed here.
                num_behind = sum(other.is_decoding for other in self.running[number + 1 :])
                count = min(request.num_uncomputed_tokens, max(1, left - num_behind))
            if self._grow(request, count):
                scheduled.append(scheduled_request(request, count))
                left -= count
        return scheduled

    def _add_drafts(self, scheduled: list[ScheduledRequest], drafts: Mapping[Request, Sequence[int]]) -> None:
        """Add draft tokens to scheduled requests, within the token budget and the free blocks."""
        left = self._budget_left(scheduled)
        for at, item in enumerate(scheduled):
            request, num_tokens = item.request, item.num_tokens
            accepted = tuple(drafts.get(request, ())[:left])
            if not accepted or num_tokens != request.num_uncomputed_tokens:
                continue
            assert request.state is not None
            if self._states.extend(request.state, item.stop + len(accepted)):
                scheduled[at] = scheduled_request(request, num_tokens + len(accepted), accepted)
                left -= len(accepted)

    def _schedule_prefills(self, scheduled: list[ScheduledRequest]) -> None:
        """Spend the rest of the token budget on prompts, of running and of waiting requests alike.

        So the long prompt of a running batch job doesn't delay an interactive request.
        """
        prefilling = [request for request in self.running if not request.is_decoding]
        preempted: list[Request] = []
        not_visited, is_open = set(prefilling), True
        left = self._budget_left(scheduled)
        for request in self._prefill_order.iterate(prefilling, self.waiting):
            if left <= 0 or not (is_open or not_visited):
                break
            not_visited.discard(request)
            if is_open and not request.is_running:
                # No request overtakes the first one that waits, or a long prompt would wait for ever.
                is_open = self._admit(request, scheduled, preempted)
                left = self._budget_left(scheduled)
            if request.is_running and request not in self._copies:
                count = self._chunk(request, left)
                scheduled.append(scheduled_request(request, count))
                self._prefill_order.record(request, count)
                left -= count

    def _budget_left(self, scheduled: Sequence[ScheduledRequest]) -> int:
        return self.token_budget.tokens - sum(item.num_tokens for item in scheduled)

    def _grow(self, request: Request, count: int) -> bool:
        """Allocate state for ``count`` more tokens; False if only better-ranked requests could free state."""
        assert request.state is not None
        while not self._states.extend(request.state, request.num_computed_tokens + count):
            victim = self.running[-1]
            if victim is request:
                # The request keeps its blocks until another block is free, or until it is preempted.
                return False
            self.preempt(victim)
        return True

    def _admit(self, request: Request, scheduled: list[ScheduledRequest], preempted: list[Request]) -> bool:
        """Start a request if its state fits, if needed after preempting requests of lower priority."""
        if any(other.rank <= request.rank for other in preempted):
            return False
        match = self._find(request)
        victims = [other for other in self.running if other.source.priority > request.source.priority]
        if not self._has_capacity(request, match, without=victims):
            return False
        while not self._has_capacity(request, match):
            if not victims:
                return False
            victim = victims.pop()
            self.preempt(victim)
            preempted.append(victim)
            scheduled[:] = [item for item in scheduled if item.request is not victim]
            # The victim's state has entered the prefix cache and may have evicted other state.
            match = self._find(request)
        self._remove_waiting(request)
        self._start(request, match)
        return True

    def _find(self, request: Request) -> Match:
        ids, can_read = request.identity_ids, request.can_read_cache
        match = self._cache.find(request.namespace, ids, fetched=request.fetched, can_read=can_read)
        while (span := request.whole_image_at(match.num_tokens)) is not None:
            ids = ids[: span.start + 1]  # resume before the picture
            match = self._cache.find(request.namespace, ids, fetched=request.fetched, can_read=can_read)
            match = replace(match, reason=match.reason or MissReason.EVICTED)
        saved = request.source.saved_state
        # The request's own state is further on: it needs blocks of its own for all of it.
        return match if saved is None or match.num_tokens >= len(saved.token_ids) else Match(reason=match.reason)

    def _has_capacity(self, request: Request, match: Match, without: Sequence[Request] = ()) -> bool:
        """Whether a waiting request could start with its cached prefix, ``without`` some running requests."""
        # Reserve a block for each running request, or they would soon preempt the new one.
        num_running = len(self.running) - len(without)
        return self._states.can_admit(
            len(request.token_ids),
            reserve_blocks=num_running - self._cache.num_shared_in_use(match),
            without=[other.state for other in without if other.state is not None],
            shared_blocks=self._cache.blocks_of(match),
        )

    def _start(self, request: Request, match: Match) -> None:
        """Allocate a request's state and fill in its cached prefix."""
        state = request.state = self._states.allocate()
        tokens = request.identity_ids
        request.cached = self._cache.begin(
            match,
            request.namespace,
            state.index,
            state.slot,
            tokens,
            request.fetched,
            breakpoints=request.source.cache_breakpoints,
            is_kept=request.can_write_cache,
        )
        extended = self._states.extend(state, len(tokens))
        assert extended
        request.fetched = None
        request.num_computed_tokens, reason = match.num_tokens, match.reason
        num_known, saved = match.num_tokens, request.source.saved_state
        if saved is not None and match.num_tokens < len(saved.token_ids):
            num_known = len(saved.token_ids)
            reason = None if num_known >= len(tokens) - 1 else MissReason.DIVERGED
            blocks = self._states.kv.blocks_of(state.index) if self._states.has_paged_state else ()
            self._copies.write(request, blocks, state.slot, saved)
        else:
            insort(self.running, request, key=_rank)
        if request.num_cached_tokens is None:
            # After a preemption a request finds its own state, which isn't counted.
            request.admitted_at = time.monotonic()
            request.num_cached_tokens = min(num_known, request.num_prompt_tokens)
            request.cache_miss_reason = None if reason is None else reason.value
            self._cache.record_found(request.num_cached_tokens, reason)

    def _chunk(self, request: Request, budget: int) -> int:
        """Return the number of tokens of a prefill to compute in this step."""
        assert request.cached is not None
        start, length = request.num_computed_tokens, len(request.token_ids)
        stop = self._cache.chunk_stop(request.cached, start, min(length, start + budget), length)
        # A picture whose tokens attend to each other isn't divided, even if the step gets longer than its budget.
        span = request.whole_image_at(stop)
        return (stop if span is None else span.start if span.start > start else span.stop) - start

    def _release(self, request: Request, *, is_state_valid: bool = True) -> None:
        """Free a running request's state; the prefix cache keeps what was computed without an error, while it fits."""
        state, cached = request.state, request.cached
        assert state is not None and cached is not None
        if request in self.running:  # otherwise its state was being copied
            self.running.remove(request)
        slot = state.slot
        if request.error is None:
            tokens, num_computed = request.identity_ids, request.num_computed_tokens
            slot = self._cache.end(cached, state.index, slot, tokens, num_computed, is_state_valid=is_state_valid)
        else:
            self._cache.forget(cached, state.index)
        self._states.release(SequenceState(state.index, slot))
        request.state = request.cached = None
