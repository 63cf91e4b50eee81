"""Engine: continuous batching over token ids. Knows no text, no HTTP, no database.

One thread owns an engine (``loop``). A step is four calls: schedule, forward, sample, update. Every
accepted request gets exactly one output with a ``finish_reason``, whatever happens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from inference.engine.config import EngineConfig
from inference.engine.device import fetch, on_device
from inference.engine.memory_errors import is_memory_error
from inference.engine.model_runner import ModelRunner, Network
from inference.engine.pooling import Pooler
from inference.engine.prefix_cache.cache import PrefixCache
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.lookup import Fetched
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.stats import PrefixCacheStats
from inference.engine.request import EngineOutput, EngineRequest, FinishReason
from inference.engine.running_request import Request, RequestStatus
from inference.engine.sampling.sampler import SampledToken, Sampler, likeliest
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import ScheduledRequest, Scheduler, SchedulerOutput
from inference.engine.speculation.acceptance import Answer, agreed_run, states_along
from inference.engine.speculation.setup import Speculation, make_speculator
from inference.engine.speculation.speculator import Speculator
from inference.engine.speculation.stats import SpeculationStats
from inference.engine.state_manager import StateManager
from inference.errors import (
    BlazrError,
    Conflict,
    EngineDead,
    GenerationFailed,
    InvalidRequest,
    InvalidSamplingParams,
    InvalidTokenIds,
    PromptTooLong,
)
from inference.modelling.spec import ModelSpec

logger = logging.getLogger(__name__)

MAX_MEMORY_ERRORS = 3
"""Steps in a row that may run out of memory before the worst-ranked request is given up."""

FETCH_WAIT_S = 0.05
"""Longest wait for the disk in a step without work."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges; totals are since the engine was made. Scratch isn't counted."""

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


class Engine:
    """Generates for many requests at once.

    Args:
        network: Weights on ``config.device``.
        spec: What the network was built from; says what state its layers keep.
        config: Sizes and limits.
        disk: Where the prefix cache outlives the engine; closed with it.
        speculation: Whether and how to guess ahead.

    Attributes:
        final_outputs: After ``EngineDead``: the last output of every request that was in flight.
    """

    def __init__(
        self,
        network: Network,
        spec: ModelSpec,
        config: EngineConfig,
        *,
        disk: DiskTier | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.config = config
        self.final_outputs: list[EngineOutput] = []
        self._vocab_size = spec.vocab_size
        self._device = torch.device(config.device)
        self._states = StateManager(spec, config)
        self._scheduler = Scheduler(config, self._states)
        self._fetching: dict[Request, Future[Fetched]] = {}
        self._speculator: Speculator | None = None
        with on_device(self._device):
            self._runner = ModelRunner(network, spec, config, self._states)
            access = StateAccess(spec, self._runner.layer_states, config.block_size)
            self._prefix_cache = PrefixCache(spec, config, self._states.kv, access, disk)
            self._states.prefix_cache = self._prefix_cache
            if speculation is not None:
                self._speculator = make_speculator(speculation, config, self._states, access)
            self._sampler = Sampler(config.invalid_token_ids, self._device)
        self._requests: dict[str, Request] = {}
        self._pending: list[EngineOutput] = []
        self._num_constrained = 0
        self._arrivals = 0
        self._num_memory_errors = 0
        self._num_steps = 0
        self._num_computed_tokens = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_failed = 0
        self._dead: EngineDead | None = None

    # --- requests ------------------------------------------------------------------------------

    def add_request(self, source: EngineRequest) -> None:
        """Accept a request.

        Raises:
            Conflict: Its id is in flight.
            InvalidTokenIds: No ids, or ids that the model doesn't have.
            InvalidSamplingParams: Parameters that can't be met.
            PromptTooLong: Prompt and ``max_tokens`` exceed ``max_model_len``.
            OutOfCacheBlocks: It needs more state than there is, even alone.
            EngineDead: The engine has ended.
        """
        if self._dead is not None:
            raise self._dead
        if source.request_id in self._requests:
            raise Conflict(f"request {source.request_id} is already in flight; use another id.", param="request_id")
        self._check_token_ids("prompt", source.prompt_token_ids)
        if not source.prompt_token_ids:
            raise InvalidTokenIds("the prompt has no tokens; give at least one.", param="prompt")
        self._check_token_ids("prior_output_token_ids", source.prior_output_token_ids)
        self._check_params(source)
        max_tokens = self._check_length(source)

        eos = () if source.params.ignore_eos else source.eos_token_ids
        # A tokenizer may know more ids than the model has.
        stop_token_ids = frozenset(token for token in (*eos, *source.params.stop_token_ids) if token < self._vocab_size)
        request = Request(
            source=source,
            arrival=self._arrivals,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            token_ids=[*source.prompt_token_ids, *source.prior_output_token_ids],
            sampling=SamplingState(
                source.params,
                stop_token_ids,
                source.prompt_token_ids,
                source.prior_output_token_ids,
                source.constraint,
            ),
            namespace=self._prefix_cache.digest(source.cache_salt, len(source.prompt_token_ids)),
        )
        self._arrivals += 1
        self._num_prompt_tokens += request.num_prompt_tokens
        self._requests[request.request_id] = request
        self._num_constrained += source.constraint is not None
        self._queue(request)
        if request.known_ending is not None and request.prompt_logprobs is None and request.pooler is None:
            # An earlier attempt got to the end, or no token is wanted.
            self._finish(request, request.known_ending)

    def abort_request(self, request_id: str) -> bool:
        """End a request early and free its state at once; its last output comes with the next step.

        Returns:
            False if there is no such request (any more).
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, FinishReason.ABORT)
        return True

    def close(self) -> None:
        """Write to disk what waits to be written; the engine isn't used any more."""
        self._sampler.close()
        self._prefix_cache.close()

    def flush(self) -> None:
        """Wait until what the prefix cache keeps on disk is there."""
        self._prefix_cache.flush()

    def has_unfinished(self) -> bool:
        """Whether ``step`` has something to do or to say."""
        return bool(self._requests or self._pending)

    # --- the step ------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[EngineOutput]:
        """Compute the next tokens of the scheduled requests.

        Returns:
            News of every request that has some.

        Raises:
            EngineDead: The step failed; ``final_outputs`` has an output for every request.
        """
        if self._dead is not None:
            raise self._dead
        try:
            with on_device(self._device):
                self._step()
        except Exception as error:
            raise self._die(error) from error
        outputs, self._pending = self._pending, []
        return outputs

    def _step(self) -> None:
        self._prefix_cache.poll()
        if self._fetching:
            self._take_fetched()
        speculator = self._speculator
        guesses = {} if speculator is None else speculator.propose(self._scheduler.running)
        step = self._scheduler.schedule(guesses)
        if speculator is not None:
            speculator.begin(step)
        if not step.scheduled:
            return
        if self._num_constrained:
            self._sampler.begin([item.request.sampling for item in step.scheduled if item.reaches_end])
        try:
            hidden = self._runner.forward(step)
            tokens = self._choose_steadily(step, hidden)
            sampled = {} if tokens is not None else self._score_and_sample(step, hidden)
        except Exception as error:
            if not is_memory_error(error):
                raise
            logger.warning("a step with %d requests ran out of memory: %s", len(step.scheduled), error)
            if speculator is not None:
                speculator.end(is_complete=False)
            self._recover_memory(step)
            return
        self._num_memory_errors = 0
        self._scheduler.token_budget = min(2 * self._scheduler.token_budget, self.config.max_num_batched_tokens)
        if tokens is not None:
            self._update_steadily(step, tokens)
        else:
            self._update(step, sampled)
        # What comes until the next forward pass leaves cores idle; those that are new in it follow there.
        if self._num_constrained:
            self._sampler.begin([request.sampling for request in self._scheduler.running])
        if speculator is not None:
            speculator.end()

    def stats(self) -> EngineStats:
        """A snapshot."""
        states = self._states
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks_used=states.kv.pool.num_used,
            num_blocks_total=states.kv.pool.num_blocks - 1,
            num_state_slots_used=states.slots.num_used,
            num_state_slots_total=states.slots.num_slots - 1,
            num_preemptions=self._scheduler.num_preemptions,
            num_steps=self._num_steps,
            num_computed_tokens=self._num_computed_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_failed=self._num_failed,
            state_bytes=self._runner.state_bytes,
            prefix_cache=self._prefix_cache.stats(),
            speculation=None if self._speculator is None else self._speculator.stats(),
        )

    def _queue(self, request: Request) -> None:
        """Put a request into the queue; before that, read what the disk has of it, beside the steps of others."""
        fetching = None
        if request.may_read_cache:
            fetching = self._prefix_cache.fetch(request.namespace, request.token_ids)
        if fetching is None:
            self._scheduler.add(request)
        else:
            self._fetching[request] = fetching

    def _take_fetched(self) -> None:
        """Queue the requests that have been read; with nothing else to do, wait a moment for one."""
        if not self._scheduler.running and not self._scheduler.waiting and not self._pending:
            wait(self._fetching.values(), timeout=FETCH_WAIT_S, return_when="FIRST_COMPLETED")
        for request in [request for request, fetching in self._fetching.items() if fetching.done()]:
            request.fetched = self._fetching.pop(request).result()
            self._scheduler.add(request)

    # A step in which everybody decodes and takes the likeliest token passes the two methods that follow; they do what
    # ``_score_and_sample`` and ``_update`` would do, without objects for what nobody wants.

    def _choose_steadily(self, step: SchedulerOutput, hidden: torch.Tensor) -> list[int] | None:
        """Each request's next token; None: the general way is needed."""
        if (
            not step.is_steady
            or self._speculator is not None
            or not all(item.request.is_plain for item in step.scheduled)
        ):
            return None
        greatest = self._runner.greatest_of(hidden, range(len(step.scheduled)))
        if greatest is None:
            return None
        tokens, values = fetch(*greatest)
        return tokens if math.isfinite(sum(values)) else None

    def _update_steadily(self, step: SchedulerOutput, tokens: Sequence[int]) -> None:
        self._num_steps += 1
        self._num_computed_tokens += len(tokens)
        self._num_generated_tokens += len(tokens)
        stride = self._states.cache_stride
        for (request, _, computed, _), token in zip(step.scheduled, tokens, strict=True):
            token_ids = request.token_ids
            token_ids.append(token)
            request.sampling.num_output_tokens += 1
            request.num_computed_tokens = computed + 1
            if (computed + 1) % stride == 0 and request.state is not None:
                self._states.advance(request.state, token_ids, computed + 1)
            if token in request.stop_token_ids or len(token_ids) >= request.most_tokens:
                reason = request.ending()
                assert reason is not None
                self._finish(request, reason).new_token_ids.append(token)
            else:
                self._report(request, [token])

    def _score_and_sample(self, step: SchedulerOutput, hidden: torch.Tensor) -> dict[Request, list[Answer]]:
        """The step's results by request, more than one if guesses hold; requests without any are absent."""
        results: dict[Request, list[Answer]] = {}
        items: list[ScheduledRequest] = []
        states: list[SamplingState] = []
        rows: list[int] = []
        first_row = 0
        for item in step.scheduled:
            request = item.request
            if request.prompt_logprobs is not None and item.num_computed_tokens < request.num_prompt_tokens:
                error = self._score_prompt(item, hidden, first_row)
                if error is not None:
                    results[request] = [error]
            if request.pooler is not None:
                request.pooler.add(hidden[first_row : first_row + item.num_tokens], item.num_computed_tokens)
            first_row += item.num_tokens
            if item.reaches_end and request.known_ending is None and request not in results:
                items.append(item)
                if item.guesses:
                    states += states_along(request.sampling, item.guesses)
                    rows += range(first_row - 1 - len(item.guesses), first_row)
                else:
                    states.append(request.sampling)
                    rows.append(first_row - 1)
        if items:
            answers = iter(self._choose(hidden, rows, states))
            for item in items:
                if item.guesses:
                    results[item.request] = agreed_run(item.guesses, list(islice(answers, 1 + len(item.guesses))))
                else:
                    results[item.request] = [next(answers)]
        return results

    def _choose(self, hidden: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]) -> Sequence[Answer]:
        """A token for each of the named rows of ``hidden``."""
        if all(state.is_plain for state in states):
            greatest = self._runner.greatest_of(hidden, rows)
            if greatest is not None:
                return likeliest(*greatest)
        logits = self._runner.logits_of(hidden, rows)
        return self._sampler.sample(logits, states, lambda: self._runner.logits_of(hidden, rows))

    def _score_prompt(self, item: ScheduledRequest, hidden: torch.Tensor, first_row: int) -> BlazrError | None:
        known = item.request.prompt_logprobs
        assert known is not None
        try:
            known.extend(list(self._runner.score_prompt(hidden, item, first_row, self._sampler)))
        except BlazrError as error:
            return error
        except Exception as error:
            logger.exception("scoring the prompt of request %s failed", item.request.request_id)
            return GenerationFailed(f"the prompt's log-probabilities could not be computed ({type(error).__name__}).")
        return None

    def _update(self, step: SchedulerOutput, results: dict[Request, list[Answer]]) -> None:
        self._num_steps += 1
        for item in step.scheduled:
            request = item.request
            self._num_computed_tokens += item.num_tokens
            answers = results.get(request, ())
            tokens = self._append(request, answers) if answers else ()
            if self._speculator is None:
                request.num_computed_tokens = item.stop
            else:
                # Each token but the last one was a guess that held, so its state is computed.
                self._speculator.settle(item, item.stop - len(item.guesses) + max(0, len(tokens) - 1))
            assert request.state is not None
            failed = answers[-1] if answers else None
            error = failed if isinstance(failed, BlazrError) else None
            if error is None:
                self._states.advance(request.state, request.token_ids, request.num_computed_tokens)
            reason = FinishReason.ERROR if error is not None else request.ending() if tokens else None
            if not answers and item.reaches_end:
                reason = request.known_ending
            if reason is not None and request.pooler is not None:
                output = self._finish_pooled(request, request.pooler)
            elif reason is not None:
                output = self._finish(request, reason, error=error)
            elif tokens:
                output = self._report(request)
            else:
                continue
            output.new_token_ids += [token.token_id for token in tokens]
            if tokens and tokens[0].logprobs is not None:
                output.logprobs = [token.logprobs for token in tokens if token.logprobs is not None]

    def _append(self, request: Request, answers: Sequence[Answer]) -> list[SampledToken]:
        """Take the tokens up to the one that ends the request."""
        taken: list[SampledToken] = []
        for answer in answers:
            if isinstance(answer, BlazrError) or (taken and request.ending() is not None):
                break
            request.token_ids.append(answer.token_id)
            request.sampling.append(answer.token_id)
            taken.append(answer)
        self._num_generated_tokens += len(taken)
        return taken

    def _finish(self, request: Request, reason: FinishReason, error: BlazrError | None = None) -> EngineOutput:
        """Free a request and make its last output."""
        if self._fetching.pop(request, None) is not None:
            request.status = RequestStatus.FINISHED
        self._scheduler.finish(request, is_sound=error is None)
        del self._requests[request.request_id]
        self._num_constrained -= request.sampling.constraint is not None
        output = self._report(request)
        output.finish_reason = reason
        output.error = error
        if reason is FinishReason.STOP and request.token_ids[-1] in request.stop_token_ids:
            output.stop_token_id = request.token_ids[-1]
        if reason is FinishReason.ERROR:
            self._num_failed += 1
        return output

    def _finish_pooled(self, request: Request, pooler: Pooler) -> EngineOutput:
        try:
            pooled = pooler.vector()
        except BlazrError as error:
            return self._finish(request, FinishReason.ERROR, error=error)
        output = self._finish(request, FinishReason.LENGTH)
        output.pooled = pooled
        return output

    def _report(self, request: Request, token_ids: list[int] | None = None) -> EngineOutput:
        """A new output, with the prompt's log-probabilities if they are complete and not handed out yet."""
        output = EngineOutput(
            request.request_id,
            [] if token_ids is None else token_ids,
            num_cached_tokens=request.num_cached_tokens or 0,
            cache_miss_reason=request.cache_miss_reason,
        )
        if request.prompt_logprobs is not None and request.has_all_prompt_logprobs:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        self._pending.append(output)
        return output

    # --- faults --------------------------------------------------------------------------------

    def _recover_memory(self, step: SchedulerOutput) -> None:
        """Go on after a step that ran out of memory.

        The step is tried again with half the tokens and without its worst-ranked request; after
        ``MAX_MEMORY_ERRORS`` in a row that one fails. Paged state can be written twice, recurrent state that a
        part of the layers has advanced can't: requests with such state start over.
        """
        self._num_memory_errors += 1
        worst = max((item.request for item in step.scheduled), key=lambda request: request.rank)
        started = [item.request for item in step.scheduled] if self._states.has_slots else [worst]
        for request in started:
            self._scheduler.preempt(request, is_state_valid=False)
        self._scheduler.token_budget = max(1, self._scheduler.token_budget // 2)
        if self._num_memory_errors >= MAX_MEMORY_ERRORS:
            self._num_memory_errors = 0
            error = GenerationFailed("the server ran out of memory while computing this request; try a shorter one.")
            self._finish(worst, FinishReason.ERROR, error=error)

    def _die(self, error: Exception) -> EngineDead:
        logger.exception("the step failed; the engine ends")
        self._dead = EngineDead(f"the engine failed ({type(error).__name__}); the worker restarts.")
        # The scheduler may be what broke, so nothing is asked of it.
        failed = [
            EngineOutput(request_id, finish_reason=FinishReason.ERROR, error=self._dead)
            for request_id in self._requests
        ]
        self.final_outputs, self._pending = self._pending + failed, []
        self._requests.clear()
        return self._dead

    # --- checks --------------------------------------------------------------------------------

    def _check_token_ids(self, name: str, token_ids: Sequence[int]) -> None:
        try:
            ids = np.asarray(token_ids)
        except (OverflowError, ValueError):
            ids = np.empty(1, dtype=object)
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1):
            raise InvalidTokenIds(f"{name} must be a list of token ids, integers below 2^63.", param=name)
        if ids.size and (ids.min() < 0 or ids.max() >= self._vocab_size):
            bad = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
            raise InvalidTokenIds(
                f"{name} has the token id {bad}, the model's ids are 0 to {self._vocab_size - 1}.", param=name
            )

    def _check_params(self, source: EngineRequest) -> None:
        params = source.params
        if params.n != 1:
            raise InvalidSamplingParams(f"n is {params.n}, the engine takes one request per choice.", param="n")
        if params.seed is None and not params.is_greedy:
            raise InvalidSamplingParams("seed must be set before a request reaches the engine.", param="seed")
        if source.pooling is not None and params.max_tokens != 0:
            raise InvalidSamplingParams(
                f"max_tokens is {params.max_tokens}; a request for a pooled vector generates nothing, set it to 0.",
                param="max_tokens",
            )
        self._check_token_ids("stop_token_ids", params.stop_token_ids)
        self._check_token_ids("logit_bias", tuple(params.logit_bias))

    def _check_length(self, source: EngineRequest) -> int:
        """Output tokens at which the request ends."""
        num_prompt, limit = len(source.prompt_token_ids), self.config.max_model_len
        wanted = source.params.max_tokens
        room = limit - num_prompt
        least = 1 if wanted is None else wanted
        if least > room:
            more = "" if wanted is None else f" and max_tokens is {wanted:,}"
            remedy = "shorten the prompt" if wanted is None else "shorten the prompt or lower max_tokens"
            raise PromptTooLong(
                f"prompt has {num_prompt:,} tokens{more}, max_model_len is {limit:,}; {remedy}.",
                param="prompt" if num_prompt > limit else "max_tokens",
            )
        max_tokens = min(room, max(1, self._states.max_sequence_tokens - num_prompt)) if wanted is None else wanted
        if source.params.min_tokens > max_tokens:
            raise InvalidSamplingParams(
                f"min_tokens is {source.params.min_tokens:,}, only {max_tokens:,} fit behind the prompt; lower it.",
                param="min_tokens",
            )
        if len(source.prior_output_token_ids) > max_tokens:
            raise InvalidRequest(
                f"{len(source.prior_output_token_ids):,} tokens were delivered before, max_tokens is {max_tokens:,}.",
                param="prior_output_token_ids",
            )
        # The last token is never computed.
        self._states.check_fits(max(num_prompt, num_prompt + max_tokens - 1))
        return max_tokens
