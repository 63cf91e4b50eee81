"""DraftRunner: draft tokens with a smaller model, for all requests of a step together.

The draft model has its own state of each request. It first computes the tokens that were generated since its last
step. It draws with the request's own parameters, seed and positions, so that equal distributions give equal tokens.
Rejected draft tokens are rolled back as in the target model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import ModelRunner, Network
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.running_request import Request
from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput, scheduled_request
from inference.engine.speculation.proposer import Drafts
from inference.engine.speculation.rollback import Rollback
from inference.engine.state_manager import StateManager
from inference.modelling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A smaller model with the same vocabulary.

    Attributes:
        network: Weights on ``config.device``.
        spec: Specification of the network.
        config: Sizes; with recurrent layers, ``num_spare_slots`` equals ``max_num_seqs``.
    """

    network: Network
    spec: ModelSpec
    config: EngineConfig


@dataclass(slots=True, eq=False)
class _Follower:
    """The draft model's state of a request.

    Attributes:
        shadow: The draft model's copy of the request; its ``token_ids`` end with the draft tokens.
        sampling: Sampling state after the draft tokens.
        drafts: Draft tokens since the last ``accept``.
    """

    shadow: Request
    sampling: SamplingState
    drafts: list[int] = field(default_factory=list)


class DraftRunner:
    """Draft tokens with a model.

    Args:
        draft: The draft model.
        num_tokens: Maximum draft tokens of a request in a step.
    """

    def __init__(self, draft: DraftModel, num_tokens: int) -> None:
        config = replace(draft.config, prefix_cache=False)
        self._config = config
        self._num_tokens = num_tokens
        self._states = StateManager(draft.spec, config)
        self._runner = ModelRunner(draft.network, draft.spec, config, self._states)
        self._sampler = Sampler(config.invalid_token_ids, torch.device(config.device), self._runner.backend.row_maxima)
        self._rollback = Rollback(
            StateAccess(draft.spec, self._runner.layer_states, config.block_size),
            first_slot=config.num_state_slots,
            num_slots=config.num_spare_slots,
        )
        self._followers: dict[Request, _Follower] = {}
        self._vocab_size = draft.spec.vocab_size
        self._unknown: set[Request] = set()

    @property
    def state_bytes(self) -> int:
        """Bytes of the draft model's states."""
        return self._runner.state_bytes

    def observe(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """Do nothing: the draft model reads the tokens itself."""

    def propose(self, limits: Mapping[Request, int]) -> Drafts:
        """See ``Proposer``. A request without capacity here, or with too many uncomputed tokens, gets no drafts."""
        try:
            return self._propose(limits)
        except BaseException:
            # Some states may have advanced, others not.
            for request in list(self._followers):
                self._release(request)
            raise

    def _propose(self, limits: Mapping[Request, int]) -> Drafts:
        followers: dict[_Follower, int] = {}
        for request, count in limits.items():
            follower = self._follow(request, limits)
            if follower is not None:
                followers[follower] = count
        ready = self._catch_up(followers)
        self._draw(ready)
        active = [follower for follower in ready if followers[follower] > 1 and follower.drafts]
        if self._states.has_slots:
            for follower in active:
                self._rollback.save(follower.shadow)
        while active := [follower for follower in active if len(follower.drafts) < followers[follower]]:
            step = SchedulerOutput([scheduled_request(follower.shadow, 1) for follower in active], len(active))
            hidden = self._runner.forward(step)
            for follower in active:
                follower.shadow.num_computed_tokens += 1
            before = [len(follower.drafts) for follower in active]
            self._draw({follower: hidden[row : row + 1] for row, follower in enumerate(active)})
            active = [follower for follower, count in zip(active, before, strict=True) if len(follower.drafts) > count]
        return {
            request: list(follower.drafts)
            for request, follower in self._followers.items()
            if request in limits and follower.drafts
        }

    def accept(self, request: Request, num_accepted: int) -> None:
        """See ``Proposer``."""
        follower = self._followers.get(request)
        if follower is None or not follower.drafts:
            return
        shadow, drafts = follower.shadow, follower.drafts
        first = len(shadow.token_ids) - len(drafts)
        keep = min(first + num_accepted, shadow.num_computed_tokens)
        if keep < shadow.num_computed_tokens and self._states.has_slots:
            self._rollback.restore(shadow)
        else:
            shadow.num_computed_tokens = keep
            self._rollback.drop(shadow)
        del shadow.token_ids[shadow.num_computed_tokens :]
        drafts.clear()

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._unknown.discard(request)
        self._release(request)

    def can_propose(self, request: Request) -> bool:
        """See ``Proposer``."""
        return request not in self._unknown

    def _release(self, request: Request) -> None:
        follower = self._followers.pop(request, None)
        if follower is not None:
            self._rollback.drop(follower.shadow)
            assert follower.shadow.state is not None
            self._states.release(follower.shadow.state)

    def _follow(self, request: Request, limits: Mapping[Request, int]) -> _Follower | None:
        """Return the request's follower, with its tokens and capacity for drafts; None without free capacity."""
        num_tokens = len(request.token_ids) + self._num_tokens
        if num_tokens > self._config.max_model_len or request in self._unknown:
            self._release(request)
            return None
        follower = self._followers.pop(request, None)
        if follower is None:
            if not self._free_capacity(num_tokens, limits):
                return None
            shadow = request.shadow(self._states.allocate())
            follower = _Follower(shadow, request.sampling)
        state = follower.shadow.state
        assert state is not None
        # Keep the order of use: the least recently used follower is released first.
        self._followers[request] = follower
        if not self._states.extend(state, num_tokens) and not (
            self._free_capacity(num_tokens, limits) and self._states.extend(state, num_tokens)
        ):
            self._release(request)
            return None
        shadow = follower.shadow
        if follower.drafts:
            self.accept(request, 0)
        news = request.token_ids[len(shadow.token_ids) :]
        if max(news, default=0) >= self._vocab_size:
            # The prompt has an id without a token; the draft model's embedding may not have it.
            self._unknown.add(request)
            self._release(request)
            return None
        shadow.token_ids += news
        # The token budget may cut a step; tokens are drawn only after all known tokens are computed.
        follower.sampling = request.sampling.copy()
        return follower

    def _free_capacity(self, num_tokens: int, limits: Mapping[Request, int]) -> bool:
        """Release requests that don't draft now, least recently used first; True if ``num_tokens`` then fit."""
        idle: Iterable[Request] = [request for request in self._followers if request not in limits]
        for request in idle:
            if self._states.can_admit(num_tokens):
                break
            self._release(request)
        return self._states.can_admit(num_tokens)

    def _catch_up(self, followers: Iterable[_Follower]) -> dict[_Follower, torch.Tensor]:
        """Compute the known tokens, within the token budget of one step.

        Returns:
            The last hidden row, (1, h), of each follower whose known tokens are all computed.
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
        hidden = self._runner.forward(SchedulerOutput(items, sum(item.is_decode for item in items)))
        ready: dict[_Follower, torch.Tensor] = {}
        row = 0
        for follower, item in scheduled:
            row += item.num_tokens
            follower.shadow.num_computed_tokens = item.stop
            if item.reaches_end:
                ready[follower] = hidden[row - 1 : row]
        return ready

    def _draw(self, rows: Mapping[_Follower, torch.Tensor]) -> None:
        """Draw one token for each follower; followers with unusable logits get none."""
        if not rows:
            return
        hidden = torch.cat(list(rows.values()))
        states = [follower.sampling for follower in rows]
        sampled = self._sampler.sample(lambda: self._runner.logits_of(hidden, range(len(rows))), states)
        for row, follower in enumerate(rows):
            if row not in sampled.errors:
                token_id = sampled.token_ids[row]
                follower.drafts.append(token_id)
                follower.shadow.token_ids.append(token_id)
                follower.sampling.append(token_id)
