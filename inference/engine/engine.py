"""Engine: generate for many requests by continuous batching over token ids.

The engine is independent of text, HTTP and the database. One thread owns an engine (``loop``). A step is four calls:
schedule, forward, sample, update. Every accepted request gets exactly one output with a ``finish_reason``, unless the
engine ends with ``EngineDead``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

import torch

from inference.engine.adapter import Adapter
from inference.engine.adapter_pool import AdapterPool, AdapterPoolStats
from inference.engine.config import EngineConfig
from inference.engine.device import is_memory_error, on_device
from inference.engine.failures import failure_of
from inference.engine.images import ImageRows
from inference.engine.model_runner import ModelRunner, Network
from inference.engine.prefix_cache.cache import PrefixCache
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.lookup import Fetched
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.stats import PrefixCacheStats
from inference.engine.request import EngineOutput, EngineRequest, FinishReason
from inference.engine.request_checks import RequestChecks
from inference.engine.running_request import Request
from inference.engine.sampling.sampler import Sampler, SamplerOutput, argmax_output
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import ScheduledRequest, Scheduler, SchedulerOutput
from inference.engine.speculation.acceptance import states_along
from inference.engine.speculation.setup import Speculation, make_speculator
from inference.engine.speculation.stats import SpeculationStats
from inference.engine.state_copies import StateCopies
from inference.engine.state_manager import StateManager
from inference.engine.unusable_rows import UnusableRows
from inference.errors import BlazrError, Conflict, EngineDead, GenerationFailed, InvalidRequest
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.spec import ModelSpec
from inference.modelling.vision.encoder import ImageEncoder

logger = logging.getLogger(__name__)

MAX_MEMORY_ERRORS = 3
"""Failed steps of a request that neither gets further nor into smaller ones: the longest of the last step ends."""

FETCH_WAIT_S = 0.05
"""Maximum seconds that a step without work waits for the disk, or for the copy of a state."""

COUNTS = ("num_steps", "num_computed_tokens", "num_prompt_tokens", "num_generated_tokens", "num_failed")
"""Fields of ``EngineStats`` that the engine counts; it reads the others from its parts."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine's creation, and gauges; the scratch block and slot aren't counted."""

    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks_total: int
    num_state_slots_used: int
    num_state_slots_total: int
    num_preemptions: int
    num_steps: int
    num_computed_tokens: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_failed: int
    state_bytes: int
    prefix_cache: PrefixCacheStats
    speculation: SpeculationStats | None
    adapters: AdapterPoolStats | None


class Engine:
    """Generate for many requests at once.

    Args:
        network: Weights on ``config.device``.
        spec: Specification of the network, with the state of its layers.
        config: Sizes and limits.
        disk: Disk tier of the prefix cache; closed with the engine.
        speculation: Speculative decoding; None: off.
        adapters: The LoRA adapters of the network; None: requests can't name any.
        vision: The model's vision encoder; None: requests with pictures are refused.

    Attributes:
        adapters: The resident adapters; None: requests can't name any.
    """

    def __init__(
        self,
        network: Network,
        spec: ModelSpec,
        config: EngineConfig,
        *,
        disk: DiskTier | None = None,
        speculation: Speculation | None = None,
        adapters: NetworkAdapters | None = None,
        vision: ImageEncoder | None = None,
    ) -> None:
        self.config = config
        self._vocab_size = spec.vocab_size
        self._device = torch.device(config.device)
        self._checks = RequestChecks(spec, config, has_vision=vision is not None)
        self._states = StateManager(spec, config)
        with on_device(self._device):
            images = None if vision is None else ImageRows(vision)
            self._runner = ModelRunner(network, spec, config, self._states, adapters, images)
            access = StateAccess(spec, self._runner.layer_states, config.block_size)
            self._prefix_cache = PrefixCache(spec, config, self._states.kv, access, disk)
            self._speculator = None
            if speculation is not None:
                self._speculator = make_speculator(speculation, network, spec, config, self._states, access)
            self._unusable = UnusableRows(reads_later=self._device.type != "cpu")
            row_maxima, fetch = self._runner.backend.row_maxima, self._unusable.fetch
            self._sampler = Sampler(config.invalid_token_ids, self._device, row_maxima, fetch)
        self._copies = StateCopies(access, in_background=self._device.type == "cpu")
        self.adapters = (
            None if adapters is None else AdapterPool(adapters, config.adapter_bytes, self._runner.state_bytes)
        )
        self._scheduler = Scheduler(config, self._states, self._prefix_cache, self._copies)
        self._requests: dict[str, Request] = {}
        self._fetching: dict[Request, Future[Fetched]] = {}
        self._pending: list[EngineOutput] = []
        self._arrivals = 0
        self.step_tokens = 0
        self._counts = dict.fromkeys(COUNTS, 0)
        self._dead: EngineDead | None = None

    def add_request(self, source: EngineRequest) -> None:
        """Accept a request.

        Raises:
            Conflict: A request with this id is in flight.
            InvalidRequest: See ``RequestChecks.check``.
            OutOfCacheBlocks: The request needs more state than the engine has.
            EngineDead: The engine has ended.
        """
        if self._dead is not None:
            raise self._dead
        if source.request_id in self._requests:
            raise Conflict(f"request {source.request_id} is already in flight; use another id.", param="request_id")
        max_tokens = self._checks.check(source)
        if source.adapter is not None:
            self._check_adapter(source.adapter)
        params, prompt, output = source.params, source.prompt_token_ids, source.prior_output_token_ids
        eos = () if params.ignore_eos else source.eos_token_ids
        # A tokenizer may have more ids than the model.
        stop_token_ids = frozenset(token for token in (*eos, *params.stop_token_ids) if token < self._vocab_size)
        request = Request(
            source=source,
            arrival=self._arrivals,
            max_length=len(prompt) + max_tokens,
            stop_token_ids=stop_token_ids,
            token_ids=[*prompt, *output],
            sampling=SamplingState(params, stop_token_ids, prompt, output, source.constraint, source.dry_breakers),
            namespace=self._prefix_cache.digest(
                source.cache_salt, len(prompt), source.saved_state, source.adapter.digest if source.adapter else ""
            ),
        )
        # The request needs no sampled token: an earlier attempt reached the end, or max_tokens is 0.
        request.known_ending = request.ending()
        self._arrivals += 1
        self._counts["num_prompt_tokens"] += request.num_prompt_tokens
        if source.adapter is None or self.adapters is None:
            self._queue(request)
        else:
            self.adapters.add(request)
        self._requests[request.request_id] = request
        if request.known_ending is not None and not request.computes_prompt:
            self._finish(request, request.known_ending)

    def _check_adapter(self, adapter: Adapter) -> None:
        if self.adapters is None:
            raise InvalidRequest(
                "the model is loaded without room for adapters; load it with max_adapters of at least 1.",
                param="adapter",
            )
        self.adapters.check(adapter)

    def _queue(self, request: Request) -> None:
        """Put a request into the queue, after a background read of its prefix from disk if there is one."""
        can_read = request.can_read_cache
        fetching = self._prefix_cache.fetch(request.namespace, request.identity_ids) if can_read else None
        if fetching is None:
            self._scheduler.add(request)
        else:
            self._fetching[request] = fetching

    def abort_request(self, request_id: str) -> bool:
        """End a request early and free its state; the next step returns its last output. False: the id is unknown."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, FinishReason.ABORT)
        return True

    def close(self) -> None:
        """Write the pending files of the prefix cache and release the engine's threads."""
        self._sampler.masks.close()
        self._copies.close()
        self._prefix_cache.close()
        if self.adapters is not None:
            self.adapters.close()

    def flush(self) -> None:
        """Wait until the prefix cache has written its pending files."""
        self._prefix_cache.flush()

    def has_unfinished(self) -> bool:
        """Whether requests are unfinished, or outputs or orders for adapters wait for the next ``step``."""
        return bool(self._requests or self._pending) or (self.adapters is not None and self.adapters.has_work())

    def stats(self) -> EngineStats:
        """Return the current counters and gauges."""
        states = self._states
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=sum(map(len, self._scheduler.waiting.values())),
            num_blocks_used=states.kv.pool.num_used,
            num_blocks_total=states.kv.pool.num_blocks - 1,
            num_state_slots_used=states.num_slots - 1 - len(states.free_slots),
            num_state_slots_total=states.num_slots - 1,
            num_preemptions=self._scheduler.num_preemptions,
            state_bytes=self._runner.state_bytes,
            prefix_cache=self._prefix_cache.stats(),
            speculation=None if self._speculator is None else self._speculator.stats(),
            adapters=None if self.adapters is None else self.adapters.stats(),
            **self._counts,
        )

    @torch.inference_mode()
    def step(self) -> list[EngineOutput]:
        """Compute the next tokens of the scheduled requests.

        Returns:
            One output for each request with new tokens, a result or an end.

        Raises:
            EngineDead: The step failed, and no further step is possible.
        """
        if self._dead is not None:
            raise self._dead
        try:
            with on_device(self._device):
                self._step()
        except Exception as error:
            logger.exception("the step failed; the engine ends")
            self._dead = EngineDead(f"the engine failed ({type(error).__name__}); the worker restarts.")
            self._requests.clear()
            self._pending.clear()
            raise self._dead from error
        outputs, self._pending = self._pending, []
        return outputs

    def _step(self) -> None:
        """Schedule, forward, sample, update."""
        step = self._schedule()
        self.step_tokens = sum(item.num_tokens for item in step.scheduled)
        if not step.scheduled:
            if self._copies and not self._pending:
                self._copies.wait(FETCH_WAIT_S)
            return
        try:
            hidden = self._runner.forward(step)
            if self._speculator is not None:
                self._speculator.observe(step, hidden)
            sampled = self._sample(step, hidden)
        except Exception as error:
            if not is_memory_error(error):
                raise
            logger.warning("a step with %d requests ran out of memory: %s", len(step.scheduled), error)
            self._recover_memory(step)
            return
        self._update(step, sampled)

    def _schedule(self) -> SchedulerOutput:
        """Choose the step's tokens, draft tokens included."""
        self._prefix_cache.poll()
        if self.adapters is not None and self.adapters.has_work():
            self._place_adapters(self.adapters)
        if self._fetching:
            self._take_fetched()
        if self._copies:
            self._take_copied()
        drafts = {} if self._speculator is None else self._speculator.propose(self._scheduler.running)
        step = self._scheduler.schedule(drafts)
        if self._speculator is not None:
            self._speculator.begin(step)
        self._sampler.masks.begin([item.request.sampling for item in step.scheduled if item.num_sampled])
        return step

    def _place_adapters(self, pool: AdapterPool) -> None:
        """Queue the requests whose adapters are resident; an idle engine waits up to ``FETCH_WAIT_S`` for one."""
        placed = pool.place()
        if not (placed.ready or placed.failed or self._is_busy()):
            pool.await_load(FETCH_WAIT_S)
            placed = pool.place()
        for request in placed.ready:
            self._queue(request)
        for request, error in placed.failed:
            request.error = error
            self._finish(request, FinishReason.ERROR)

    def _is_busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting or self._pending)

    def _take_fetched(self) -> None:
        """Queue the requests whose disk reads are done; an idle engine waits up to ``FETCH_WAIT_S`` for one."""
        if not self._is_busy():
            wait(self._fetching.values(), timeout=FETCH_WAIT_S, return_when="FIRST_COMPLETED")
        for request in [request for request, fetching in self._fetching.items() if fetching.done()]:
            request.fetched = self._fetching.pop(request).result()
            self._scheduler.add(request)

    def _take_copied(self) -> None:
        """Go on with the requests whose saved states are in their places, and end those whose states are read out."""
        for copy in self._scheduler.take_copied():
            request, error = copy.request, copy.result.exception()
            if error is not None:
                request.error = failure_of(error, "the state could not be copied")
                self._finish(request, FinishReason.ERROR)
            elif (state := copy.result.result()) is not None:
                request.returned_state = state
                self._finish(request, FinishReason.LENGTH)

    def _sample(self, step: SchedulerOutput, hidden: torch.Tensor) -> SamplerOutput:
        """Sample ``num_sampled`` tokens for each request of the step, in its order."""
        rows, states = self._rows_to_sample(step, hidden)
        if len(rows) < self.step_tokens:
            self._unusable.look(step, hidden)
        if not rows:
            return SamplerOutput([], {}, {})
        if all(state.is_plain for state in states) and (argmax := self._runner.argmax_of(hidden, rows)) is not None:
            return argmax_output(*argmax, self._unusable.fetch)
        return self._sampler.sample(lambda: self._runner.logits_of(hidden, rows), states)

    def _rows_to_sample(self, step: SchedulerOutput, hidden: torch.Tensor) -> tuple[list[int], list[SamplingState]]:
        """Return the rows of ``hidden`` to sample from, with the state of each; score or pool prompts on the way."""
        rows: list[int] = []
        states: list[SamplingState] = []
        first_row = 0
        for item in step.scheduled:
            if item.request.reads_prompt_rows:
                self._read_prompt_rows(item, hidden, first_row)
            first_row += item.num_tokens
            rows += range(first_row - item.num_sampled, first_row)
            try:
                following = states_along(item.request.sampling, item.draft_token_ids)
            except BaseException as error:
                item.request.error = failure_of(error, "the draft tokens could not be verified")
                following = [item.request.sampling] * item.num_sampled
            states += following[: item.num_sampled]
        return rows, states

    def _read_prompt_rows(self, item: ScheduledRequest, hidden: torch.Tensor, first_row: int) -> None:
        """Score or pool the prompt tokens of a chunk, as requested."""
        request = item.request
        try:
            if request.pooler is not None:
                request.pooler.add(hidden[first_row : first_row + item.num_tokens], item.num_computed_tokens)
            if request.prompt_logprobs is not None and item.num_computed_tokens < request.num_prompt_tokens:
                request.prompt_logprobs += list(self._runner.score_prompt(hidden, item, first_row, self._sampler))
        except BaseException as error:
            request.error = failure_of(error, "the prompt's rows could not be read")

    def _update(self, step: SchedulerOutput, sampled: SamplerOutput) -> None:
        """Append the sampled tokens, record the computed tokens, and report or finish the requests."""
        self._scheduler.token_budget.record_step()
        row = 0
        for item in step.scheduled:
            self._update_request(item, sampled, row)
            row += item.num_sampled
        self._counts["num_steps"] += 1
        self._counts["num_computed_tokens"] += self.step_tokens
        # Compute the next step's masks while the cores are idle before the forward pass.
        self._sampler.masks.begin([request.sampling for request in self._scheduler.running])
        if self._speculator is not None:
            self._speculator.end()

    def _update_request(self, item: ScheduledRequest, sampled: SamplerOutput, row: int) -> None:
        """Update one request with its sampled rows, which begin at ``row``."""
        request = item.request
        new_token_ids, reason = self._append_verified(item, sampled, row)
        self._counts["num_generated_tokens"] += len(new_token_ids)
        if self._speculator is None:
            request.num_computed_tokens = item.stop
        else:
            # Each token but the last was an accepted draft token, so its state is computed.
            num_verified = max(0, len(new_token_ids) - 1)
            self._speculator.advance(item, item.stop - len(item.draft_token_ids) + num_verified)
        request.record_progress()
        if request.error is None:
            state, cached, tokens = request.state, request.cached, request.identity_ids
            assert state is not None and cached is not None
            self._prefix_cache.advance(cached, state.index, state.slot, tokens, request.num_computed_tokens)
            if len(cached.kept) > len(request.kept_prefixes):
                request.kept_prefixes = tuple(cached.kept)
        if reason is FinishReason.LENGTH and request.source.returns_state:
            self._scheduler.read_out(request)  # ``_take_copied`` ends the request
            return
        if reason is not None:
            output = self._finish(request, reason, new_token_ids)
        elif new_token_ids:
            output = self._report(request, new_token_ids)
        if new_token_ids and row in sampled.logprobs:
            output.logprobs = [sampled.logprobs[row + number] for number in range(len(new_token_ids))]

    def _append_verified(
        self, item: ScheduledRequest, sampled: SamplerOutput, row: int
    ) -> tuple[list[int], FinishReason | None]:
        """Append sampled tokens, up to the first that isn't its row's draft token or ends the request.

        Returns:
            The tokens, and why the request ends; None: it continues. At a row with an error the request gets it.
        """
        request = item.request
        new_token_ids: list[int] = []
        reason = request.known_ending if item.reaches_end else None
        rows = range(row, row + item.num_sampled) if request.error is None else ()
        for at, draft_token_id in zip(rows, (*item.draft_token_ids, None), strict=False):
            token_id, request.error = sampled.token_ids[at], sampled.errors.get(at)
            if request.error is not None:
                break
            try:
                request.sampling.append(token_id)
                request.token_ids.append(token_id)
                reason = request.ending()
            except BaseException as error:
                request.error = failure_of(error, "the request could not continue after a token")
                break
            new_token_ids.append(token_id)
            if token_id != draft_token_id or reason is not None:
                break
        return new_token_ids, reason if request.error is None else FinishReason.ERROR

    def _finish(self, request: Request, reason: FinishReason, new_token_ids: Sequence[int] = ()) -> EngineOutput:
        """Free a request and queue its last output."""
        self._fetching.pop(request, None)
        pooled = None
        if request.pooler is not None and reason is FinishReason.LENGTH:
            try:
                pooled = request.pooler.vector()
            except BlazrError as error:
                reason, request.error = FinishReason.ERROR, error
        self._scheduler.finish(request)
        if self.adapters is not None:
            self.adapters.release(request)
        del self._requests[request.request_id]
        self._counts["num_failed"] += reason is FinishReason.ERROR
        output = self._report(request, new_token_ids)
        output.finish_reason = reason
        output.error = request.error
        output.pooled, output.saved_state = pooled, request.returned_state
        if reason is FinishReason.STOP and request.token_ids[-1] in request.stop_token_ids:
            output.stop_token_id = request.token_ids[-1]
        return output

    def _report(self, request: Request, new_token_ids: Sequence[int]) -> EngineOutput:
        """Queue an output, with the prompt's log-probabilities as soon as they are complete."""
        output = EngineOutput(
            request.request_id,
            list(new_token_ids),
            num_cached_tokens=request.num_cached_tokens or 0,
            cache_miss_reason=request.cache_miss_reason,
            admitted_at=request.admitted_at,
            kept_prefixes=request.kept_prefixes,
        )
        if request.has_all_prompt_logprobs:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        self._pending.append(output)
        return output

    def _recover_memory(self, step: SchedulerOutput) -> None:
        """Continue after a step that ran out of memory.

        The next step has half the token budget and runs without the worst-ranked request of this step. When one of its
        requests has failed too often, the longest ends, as it takes most. Paged state can be written twice. Recurrent
        state can't, because some layers have advanced it: requests with recurrent state are recomputed.
        """
        if self._speculator is not None:
            self._speculator.end()
        failed = sorted((item.request for item in step.scheduled), key=lambda request: request.rank)
        for request in failed if self._states.has_slots else failed[-1:]:
            self._scheduler.preempt(request, is_state_valid=False)
        self._scheduler.token_budget.lower()
        num_tokens = sum(item.num_tokens for item in step.scheduled)
        if max(request.record_memory_error(num_tokens) for request in failed) >= MAX_MEMORY_ERRORS:
            for request in failed:
                request.num_memory_errors = 0
            longest = max(step.scheduled, key=lambda item: (item.stop, item.request.rank)).request
            longest.error = GenerationFailed("the server ran out of memory for this request; try a shorter one.")
            self._finish(longest, FinishReason.ERROR)
