"""DraftRunner: a smaller model that guesses for all requests of a step together.

It keeps its own state of each request, catches up with what was generated since, draws with the request's own
parameters, seed and positions (so that its choice is the big model's wherever their distributions say the same), and
goes back to what held in the same ways as the big model does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import ModelRunner, Network
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.running_request import Request
from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput, scheduled_request
from inference.engine.speculation.proposer import Guesses, Hindsight
from inference.engine.speculation.rollback import Rollback
from inference.engine.state_manager import StateManager
from inference.modelling.spec import ModelSpec

LONG_READING = 16
"""Tokens from which on reading isn't a part of guessing any more, but has to pay by itself."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A smaller model with the same vocabulary.

    Attributes:
        network: Weights on ``config.device``.
        spec: What it was built from.
        config: ``max_num_seqs`` requests have their state here; ``num_spare_slots`` as many if it has recurrent layers.
    """

    network: Network
    spec: ModelSpec
    config: EngineConfig


@dataclass(slots=True, eq=False)
class _Follower:
    """The draft model's side of a request.

    Attributes:
        shadow: The request as the draft model computes it; its ``token_ids`` end with the guesses.
        sampling: Behind the guesses.
        guesses: Since the last ``settle``.
        is_reading: Much of its text isn't computed yet.
    """

    shadow: Request
    sampling: SamplingState
    guesses: list[int] = field(default_factory=list)
    is_reading: bool = False


class DraftRunner:
    """Makes guesses with a model.

    Args:
        draft: The model.
        num_tokens: Most guesses at a time.
    """

    priors: Sequence[float] = (0.7,)
    has_hindsight = False

    def __init__(self, draft: DraftModel, num_tokens: int) -> None:
        config = replace(draft.config, prefix_cache=False)
        self._config = config
        self._num_tokens = num_tokens
        self._states = StateManager(draft.spec, config)
        self._runner = ModelRunner(draft.network, draft.spec, config, self._states)
        self._sampler = Sampler(config.invalid_token_ids, torch.device(config.device), self._runner.backend.row_maxima)
        self._rollback = Rollback(
            self._states.slots,
            StateAccess(draft.spec, self._runner.layer_states, config.block_size),
            first_slot=config.num_state_slots,
            num_slots=config.num_spare_slots,
        )
        self._followers: dict[Request, _Follower] = {}
        self._vocab_size = draft.spec.vocab_size
        self._strange: set[Request] = set()
        self._num_read = 0
        self._reading_s = 0.0

    @property
    def state_bytes(self) -> int:
        """Memory of states."""
        return self._runner.state_bytes

    def propose(self, wanted: Mapping[Request, int]) -> Guesses:
        """See ``Proposer``. A request whose text isn't computed yet, or that finds no room, gets no guesses."""
        try:
            return self._propose(wanted)
        except BaseException:
            # Some states may have advanced, others not.
            for request in list(self._followers):
                self._release(request)
            raise

    def _propose(self, wanted: Mapping[Request, int]) -> Guesses:
        followers: dict[_Follower, int] = {}
        for request, count in wanted.items():
            follower = self._follow(request, wanted)
            if follower is not None:
                followers[follower] = count
        ready = self._catch_up(followers)
        self._guess(ready)
        active = [follower for follower in ready if followers[follower] > 1 and follower.guesses]
        if self._states.has_slots:
            for follower in active:
                self._rollback.save(follower.shadow)
        while active := [follower for follower in active if len(follower.guesses) < followers[follower]]:
            step = SchedulerOutput([scheduled_request(follower.shadow, 1) for follower in active], len(active))
            hidden = self._runner.forward(step)
            for follower in active:
                follower.shadow.num_computed_tokens += 1
            before = [len(follower.guesses) for follower in active]
            self._guess({follower: hidden[row : row + 1] for row, follower in enumerate(active)})
            active = [follower for follower, count in zip(active, before, strict=True) if len(follower.guesses) > count]
        return {
            request: list(follower.guesses)
            for request, follower in self._followers.items()
            if request in wanted and follower.guesses
        }

    def settle(self, request: Request, num_accepted: int) -> None:
        """See ``Proposer``."""
        follower = self._followers.get(request)
        if follower is None or not follower.guesses:
            return
        shadow, guesses = follower.shadow, follower.guesses
        first = len(shadow.token_ids) - len(guesses)
        keep = min(first + num_accepted, shadow.num_computed_tokens)
        if keep < shadow.num_computed_tokens and self._states.has_slots:
            self._rollback.restore(shadow)
        else:
            shadow.num_computed_tokens = keep
            self._rollback.drop(shadow)
        del shadow.token_ids[shadow.num_computed_tokens :]
        guesses.clear()

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._strange.discard(request)
        self._release(request)

    def kind_of(self, request: Request) -> int | None:
        """See ``Proposer``."""
        return None if request in self._strange else 0

    def num_unread(self, request: Request) -> int:
        """See ``Proposer``. What was generated during a pause counts as well."""
        follower = self._followers.get(request)
        if follower is not None and follower.is_reading:
            return 0
        count = len(request.token_ids) - (0 if follower is None else follower.shadow.num_computed_tokens)
        return count if count >= LONG_READING else 0

    def take_reading(self) -> tuple[int, float]:
        """See ``Proposer``."""
        taken = self._num_read, self._reading_s
        self._num_read, self._reading_s = 0, 0.0
        return taken

    def take_hindsight(self) -> Sequence[Hindsight]:
        """None: what this model would have guessed is only known when it is asked."""
        return ()

    def _release(self, request: Request) -> None:
        follower = self._followers.pop(request, None)
        if follower is not None:
            self._rollback.drop(follower.shadow)
            assert follower.shadow.state is not None
            self._states.release(follower.shadow.state)

    def _follow(self, request: Request, wanted: Mapping[Request, int]) -> _Follower | None:
        """The request's follower with all of its tokens and room for guesses; None if there is no room."""
        num_tokens = len(request.token_ids) + self._num_tokens
        if num_tokens > self._config.max_model_len or request in self._strange:
            self._release(request)
            return None
        follower = self._followers.pop(request, None)
        if follower is None:
            if not self._make_room(num_tokens, wanted):
                return None
            shadow = Request(
                source=request.source,
                arrival=request.arrival,
                max_tokens=request.max_tokens,
                stop_token_ids=request.stop_token_ids,
                token_ids=[],
                sampling=request.sampling,
                state=self._states.admit(num_tokens),
            )
            follower = _Follower(shadow, request.sampling)
        state = follower.shadow.state
        assert state is not None
        # The one that was asked for last is the last to lose its place.
        self._followers[request] = follower
        if not self._states.extend(state, num_tokens) and not (
            self._make_room(num_tokens, wanted) and self._states.extend(state, num_tokens)
        ):
            self._release(request)
            return None
        shadow = follower.shadow
        if follower.guesses:
            self.settle(request, 0)
        news = request.token_ids[len(shadow.token_ids) :]
        if max(news, default=0) >= self._vocab_size:
            # An id that stands for nothing, given in a prompt; this model's tables may end before it.
            self._strange.add(request)
            self._release(request)
            return None
        shadow.token_ids += news
        # A pass may be cut by the budget; until the end is reached, nothing is drawn.
        follower.sampling = request.sampling.copy()
        return follower

    def _make_room(self, num_tokens: int, wanted: Mapping[Request, int]) -> bool:
        """Let those go that nobody has asked for lately; True if that was enough."""
        idle: Iterable[Request] = [request for request in self._followers if request not in wanted]
        for request in idle:
            if self._states.can_admit(num_tokens, reserve_blocks=0):
                break
            self._release(request)
        return self._states.can_admit(num_tokens, reserve_blocks=0)

    def _catch_up(self, followers: Iterable[_Follower]) -> dict[_Follower, torch.Tensor]:
        """Compute what is known, as far as one step reaches.

        Returns:
            The last hidden row, (1, h), of those that are there.
        """
        budget = self._config.max_num_batched_tokens
        scheduled: list[tuple[_Follower, ScheduledRequest]] = []
        for follower in followers:
            shadow = follower.shadow
            count = min(budget, shadow.num_uncomputed_tokens)
            if count:
                scheduled.append((follower, scheduled_request(shadow, count)))
                budget -= count
        if not scheduled:
            return {}
        scheduled.sort(key=lambda entry: not entry[1].is_decode)
        items = tuple(item for _, item in scheduled)
        started = time.perf_counter()
        hidden = self._runner.forward(SchedulerOutput(items, sum(item.is_decode for item in items)))
        if any(follower.is_reading or item.num_tokens >= LONG_READING for follower, item in scheduled):
            self._reading_s += time.perf_counter() - started
            self._num_read += sum(item.num_tokens for _, item in scheduled)
        ready: dict[_Follower, torch.Tensor] = {}
        row = 0
        for follower, item in scheduled:
            row += item.num_tokens
            follower.shadow.num_computed_tokens = item.stop
            follower.is_reading = not item.reaches_end
            if item.reaches_end:
                ready[follower] = hidden[row - 1 : row]
        return ready

    def _guess(self, rows: Mapping[_Follower, torch.Tensor]) -> None:
        """Draw one token for each; those without usable numbers get none."""
        if not rows:
            return
        hidden = torch.cat(list(rows.values()))

        def logits() -> torch.Tensor:
            return self._runner.logits_of(hidden, range(len(rows)))

        sampled = self._sampler.sample(logits(), [follower.sampling for follower in rows], logits)
        for row, follower in enumerate(rows):
            if row not in sampled.errors:
                token_id = sampled.token_ids[row]
                follower.guesses.append(token_id)
                follower.shadow.token_ids.append(token_id)
                follower.sampling.append(token_id)
