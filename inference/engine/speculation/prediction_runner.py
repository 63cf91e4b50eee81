"""PredictionRunner: draft tokens with the model's own head for multi-token prediction.

The head reads the model's rows, which ``observe`` hands over. Row p of a request goes through the head together with
token p + 1, so the head is one token behind the model. The head has keys and values of its own, in blocks of its own.

A row waits until it is needed: for drafting, or because ``FLUSH_ROWS`` rows of the request wait. So steps that don't
draft hardly cost anything, and the rows of a prompt are computed as they come.

The head's sequence begins at the first row that it saw. Rows that the prefix cache or a saved state replaced by their
states never come; the head then attends to what came later only, at the true positions. Nothing is drafted until it
has the row of the last computed token.

A head has no recurrent states: rows of drafted tokens are overwritten, without a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from inference.engine.batch_builder import BatchBuilder
from inference.engine.config import EngineConfig
from inference.engine.model_runner import TORCH_DTYPES, allocate_states
from inference.engine.running_request import Request
from inference.engine.sampling.sampler import Sampler, SamplerOutput, argmax_output
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput, scheduled_request
from inference.engine.speculation.proposer import Drafts
from inference.engine.state_manager import StateManager
from inference.engine.warm_up import warm_up
from inference.modelling.backends.backend import bind_backend
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.packed import output_bits
from inference.modelling.network import HybridForCausalLM
from inference.modelling.prediction_head import PredictionHead

FLUSH_ROWS = 64
"""Rows of a request that wait before they are computed although nothing is drafted: 64 rows read the head's weights
once, and take less memory than a block of its states."""


@dataclass(slots=True, eq=False)
class _Follower:
    """The head's sequence of a request.

    Attributes:
        first: Position of its first row.
        shadow: The head's copy of the request; its ``token_ids`` are the tokens after the rows.
        num_rows: Rows of the model that are computed.
        waiting: Rows of the model that come next, in pieces (n, h).
        sampling: Sampling state after the draft tokens.
        drafts: Draft tokens since the last ``accept``.
    """

    first: int
    shadow: Request
    sampling: SamplingState
    num_rows: int = 0
    waiting: list[torch.Tensor] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)

    @property
    def num_waiting(self) -> int:
        return sum(len(piece) for piece in self.waiting)

    @property
    def position(self) -> int:
        """Position of the next row that is missing."""
        return self.first + self.num_rows + self.num_waiting

    def trim(self, position: int) -> None:
        """Drop the waiting rows from ``position`` on, which draft tokens had that were rejected."""
        excess = self.position - position
        while excess > 0 and self.waiting:
            last = self.waiting.pop()
            if len(last) > excess:
                self.waiting.append(last[: len(last) - excess])
            excess -= len(last)

    def take(self, count: int) -> torch.Tensor:
        """The first ``count`` waiting rows, (count, h), which then don't wait any more."""
        rows = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = [rows[count:]] if len(rows) > count else []
        return rows[:count]


Work = tuple[_Follower, torch.Tensor]
"""A head's sequence, and the rows (n, h) to compute next in it."""


class PredictionRunner:
    """Draft tokens with a head.

    Args:
        head: The head; it has attention only.
        network: Its model.
        config: Sizes of the engine; the head gets as many blocks as the model.
        num_tokens: Maximum draft tokens of a request in a step.
    """

    def __init__(self, head: PredictionHead, network: HybridForCausalLM, config: EngineConfig, num_tokens: int) -> None:
        self._head = head
        self._network = network
        self._num_tokens = num_tokens
        self._max_rows = config.max_num_batched_tokens
        self._device = torch.device(config.device)
        self._states = StateManager(head.spec, config)
        assert not self._states.has_slots, "a head with recurrent states"
        self._layers = allocate_states(head.spec, config)
        self._batches = BatchBuilder(head.spec, config, self._states)
        backend = bind_backend(head)
        self._sampler = Sampler(config.invalid_token_ids, self._device, backend.row_maxima)
        self._invalid_bits = output_bits(config.invalid_token_ids, head.spec.vocab_size)
        self._followers: dict[Request, _Follower] = {}
        if self._device.type == "cuda":
            self._warm_up(config, backend.warm_up_rows)

    def _warm_up(self, config: EngineConfig, product_rows: Sequence[int]) -> None:
        head, network, width = self._head, self._network, self._head.spec.hidden_size

        def forward(batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
            rows = torch.zeros(batch.num_tokens, width, dtype=TORCH_DTYPES[config.dtype], device=self._device)
            hidden: torch.Tensor = head(network, batch, rows, states)
            return hidden

        warm_up(forward, partial(head.compute_logits, network), head.spec, self._layers, config, product_rows)

    @property
    def state_bytes(self) -> int:
        """Bytes of the head's keys and values."""
        return sum(tensor.nbytes for layer in self._layers for tensor in layer.values())

    def observe(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """See ``Proposer``; keeps a copy of the rows of all requests that may draft."""
        try:
            start = 0
            for item in step.scheduled:
                stop = start + item.num_tokens
                request = item.request
                if request.pooler is None and request.known_ending is None and not request.sampling.is_forward_only:
                    self._observe(item, hidden[start:stop])
                start = stop
            self._flush(item.request for item in step.scheduled)
        except BaseException:
            self._release_all()
            raise

    def _observe(self, item: ScheduledRequest, rows: torch.Tensor) -> None:
        request, start = item.request, item.num_computed_tokens
        follower = self._followers.get(request)
        if follower is not None:
            follower.trim(len(request.token_ids) - 1)
            if start > follower.position:  # rows are missing: the state of these tokens came from a cache
                self._release(request)
                follower = None
        if follower is None:
            follower = self._follow(request, start)
        if follower is not None and (num_known := follower.position - start) < len(rows):
            follower.waiting.append(rows[num_known:].clone())

    def _follow(self, request: Request, first: int) -> _Follower | None:
        """Begin the head's sequence of a request; None without free capacity."""
        if not self._states.can_admit(1):
            for other in [other for other in self._followers if not other.is_running]:
                self._release(other)
            if not self._states.can_admit(1):
                return None
        shadow = request.shadow(self._states.allocate())
        follower = self._followers[request] = _Follower(first, shadow, request.sampling)
        return follower

    def _flush(self, requests: Iterable[Request]) -> None:
        """Compute the rows of requests for which many wait, as far as the tokens after them are known."""
        work: list[Work] = []
        for request in requests:
            follower = self._followers.get(request)
            if follower is None or follower.num_waiting < FLUSH_ROWS:
                continue
            count = min(follower.num_waiting, len(request.token_ids) - 1 - follower.first - follower.num_rows)
            if count > 0 and self._prepare(request, follower, count):
                work.append((follower, follower.take(count)))
        for part in self._parts(work):
            self._compute(part)

    def _parts(self, work: Sequence[Work]) -> Iterator[list[Work]]:
        """Cut work into passes of at most as many rows as a step of the model."""
        part: list[Work] = []
        left = self._max_rows
        for follower, rows in work:
            for piece in (rows[at : at + self._max_rows] for at in range(0, len(rows), self._max_rows)):
                if len(piece) > left or any(other is follower for other, _ in part):
                    yield part
                    part, left = [], self._max_rows
                part.append((follower, piece))
                left -= len(piece)
        if part:
            yield part

    def _prepare(self, request: Request, follower: _Follower, num_new: int) -> bool:
        """Give a sequence its known tokens and the blocks of ``num_new`` rows; without blocks it is released."""
        shadow = follower.shadow
        assert shadow.state is not None
        shadow.token_ids += request.token_ids[follower.first + 1 + len(shadow.token_ids) :]
        if self._states.extend(shadow.state, follower.num_rows + num_new):
            return True
        self._release(request)
        return False

    def _compute(self, work: Sequence[Work]) -> dict[_Follower, torch.Tensor]:
        """Compute rows, at most one piece of each sequence.

        Returns:
            What the head goes on with after the last row of each sequence, (1, h).
        """
        found = self._run(work)
        for follower, rows in work:
            follower.num_rows += len(rows)
        return found

    def _run(self, work: Sequence[Work]) -> dict[_Follower, torch.Tensor]:
        items = [(follower, rows, scheduled_request(follower.shadow, len(rows))) for follower, rows in work]
        items.sort(key=lambda entry: not entry[2].is_decode)
        scheduled = tuple(item for _, _, item in items)
        step = SchedulerOutput(scheduled, sum(item.is_decode for item in scheduled))
        batch = self._batches.build(step, self._device, [follower.first for follower, _, _ in items])
        rows = torch.cat([rows for _, rows, _ in items])
        hidden = self._head(self._network, batch, rows, self._layers)
        found: dict[_Follower, torch.Tensor] = {}
        stop = 0
        for follower, _, item in items:
            stop += item.num_tokens
            follower.shadow.num_computed_tokens = item.stop
            found[follower] = hidden[stop - 1 : stop]
        return found

    def can_propose(self, request: Request) -> bool:
        """See ``Proposer``; the head needs the row of the last computed token."""
        follower = self._followers.get(request)
        return follower is not None and follower.position >= len(request.token_ids) - 1

    def propose(self, limits: Mapping[Request, int]) -> Drafts:
        """See ``Proposer``."""
        try:
            return self._propose(limits)
        except BaseException:
            self._release_all()
            raise

    def _propose(self, limits: Mapping[Request, int]) -> Drafts:
        counts: dict[_Follower, int] = {}
        requests: dict[_Follower, Request] = {}
        work: list[Work] = []
        for request, count in limits.items():
            if not self.can_propose(request):
                continue
            follower = self._followers[request]
            follower.trim(len(request.token_ids) - 1)
            num_waiting = follower.num_waiting
            if num_waiting and self._prepare(request, follower, num_waiting + count - 1):
                follower.sampling = request.sampling.copy()
                counts[follower], requests[follower] = count, request
                work.append((follower, follower.take(num_waiting)))
        rows: dict[_Follower, torch.Tensor] = {}
        for part in self._parts(work):
            rows |= self._compute(part)
        while rows:
            drawn = self._draw(rows)
            active = [follower for follower in drawn if len(follower.drafts) < counts[follower]]
            rows = self._run([(follower, rows[follower]) for follower in active]) if active else {}
        return {requests[follower]: list(follower.drafts) for follower in counts if follower.drafts}

    def _draw(self, rows: Mapping[_Follower, torch.Tensor]) -> list[_Follower]:
        """Draw a token for each sequence; returns those that got one, as unusable logits give none."""
        hidden = torch.cat(list(rows.values()))
        sampled = self._sample(hidden, [follower.sampling for follower in rows])
        drawn: list[_Follower] = []
        for row, follower in enumerate(rows):
            if row not in sampled.errors:
                token_id = sampled.token_ids[row]
                follower.drafts.append(token_id)
                follower.shadow.token_ids.append(token_id)
                follower.sampling.append(token_id)
                drawn.append(follower)
        return drawn

    def _sample(self, hidden: torch.Tensor, states: Sequence[SamplingState]) -> SamplerOutput:
        head, network = self._head, self._network
        if head.lm_head is None and network.can_choose and all(state.is_plain for state in states):
            return argmax_output(*network.argmax_logits(head.normed(hidden), self._invalid_bits))
        return self._sampler.sample(lambda: head.compute_logits(network, hidden), states)

    def accept(self, request: Request, num_accepted: int) -> None:
        """See ``Proposer``; rows of accepted tokens are computed again from the model's rows, which are better."""
        follower = self._followers.get(request)
        if follower is not None and follower.drafts:
            follower.shadow.num_computed_tokens = follower.num_rows
            del follower.shadow.token_ids[follower.num_rows :]
            follower.drafts.clear()

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._release(request)

    def _release(self, request: Request) -> None:
        follower = self._followers.pop(request, None)
        if follower is not None:
            assert follower.shadow.state is not None
            self._states.release(follower.shadow.state)

    def _release_all(self) -> None:
        """Drop all sequences after an error, as some states may have advanced, others not."""
        for request in list(self._followers):
            self._release(request)
