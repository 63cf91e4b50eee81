"""Request: the engine's mutable state of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.pooling import Pooler
from inference.engine.prefix_cache.cached_sequence import CachedSequence
from inference.engine.prefix_cache.identity import identity_ids
from inference.engine.prefix_cache.lookup import Fetched
from inference.engine.request import CacheBreakpoint, EngineRequest, FinishReason, ImageSpan, TokenLogprobs
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.saved_state import SavedState
from inference.engine.state_manager import SequenceState
from inference.errors import BlazrError


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine; the scheduler changes its state, the engine its tokens.

    Attributes:
        source: The request as the caller gave it.
        arrival: Position in the order of arrival.
        max_length: Maximum tokens of prompt and output, the output of earlier attempts included.
        stop_token_ids: All ids that end the request, end-of-sequence included.
        token_ids: Ids of prompt and output.
        sampling: State of the sampler.
        num_computed_tokens: Number of tokens with computed state.
        num_to_replay: Generated tokens whose state was rolled back; they are computed again together with the last
            token (``speculation.rollback``).
        state: Location of the sequence's state; None unless the request is running.
        has_ended: Whether the request neither runs nor waits any more.
        known_ending: Reason to end after the prompt, without a sampled token. None: tokens are sampled.
        error: Error with which the request ends after this step.
        num_memory_errors: Its steps that ran out of memory since it got further or into a smaller step.
        prompt_logprobs: Entries so far, for prompt positions from 1; None if not requested, or already reported.
        namespace: The request's root in the prefix cache.
        cached: The sequence's position in the prefix cache, while the request is running.
        fetched: State that was read from disk for the request.
        num_cached_tokens: Prompt tokens found in the prefix cache at the first admission; None before.
        admitted_at: ``time.monotonic()`` of the first admission; 0 before.
        cache_miss_reason: Why no more tokens were found (a ``MissReason``).
        kept_prefixes: The prefixes of ``cache_breakpoints`` that the prefix cache keeps.
        returned_state: The state after the prompt, for a request with ``returns_state``, once it is computed.
        adapter_slot: Slot of the request's adapter, which is resident until the request ends; 0: it has none.
        pooler: Pooler of the prompt's rows; None: the request generates tokens.
    """

    source: EngineRequest
    arrival: int
    max_length: int
    stop_token_ids: frozenset[int]
    token_ids: list[int]
    sampling: SamplingState
    num_computed_tokens: int = 0
    num_to_replay: int = 0
    state: SequenceState | None = None
    has_ended: bool = False
    known_ending: FinishReason | None = None
    error: BlazrError | None = None
    num_memory_errors: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
    namespace: bytes = b""
    cached: CachedSequence | None = None
    fetched: Fetched | None = None
    num_cached_tokens: int | None = None
    admitted_at: float = 0.0
    cache_miss_reason: str | None = None
    kept_prefixes: tuple[CacheBreakpoint, ...] = ()
    returned_state: SavedState | None = None
    adapter_slot: int = 0
    pooler: Pooler | None = field(init=False, default=None)
    _identity_ids: list[int] | None = field(init=False, default=None)
    _most_computed_tokens: int = field(init=False, default=0)
    _least_failed_tokens: float = field(init=False, default=float("inf"))

    def __post_init__(self) -> None:
        if self.source.params.prompt_logprobs is not None:
            self.prompt_logprobs = []
        if self.source.pooling is not None:
            self.pooler = Pooler(self.source.pooling, self.num_prompt_tokens)

    def shadow(self, state: SequenceState) -> Request:
        """Return a running request of another model that follows this one: without tokens, with a state of its own."""
        return Request(
            source=self.source,
            arrival=self.arrival,
            max_length=self.max_length,
            stop_token_ids=self.stop_token_ids,
            token_ids=[],
            sampling=self.sampling,
            state=state,
        )

    def record_memory_error(self, num_tokens: int) -> int:
        """Count a step of ``num_tokens`` that ran out of memory; return ``num_memory_errors``.

        The count begins anew where the step had at most half the tokens of those that failed before: a small step may
        have memory where three larger ones had none.
        """
        if 2 * num_tokens <= self._least_failed_tokens:
            self._least_failed_tokens, self.num_memory_errors = num_tokens, 0
        self.num_memory_errors += 1
        return self.num_memory_errors

    def record_progress(self) -> None:
        """Forget the request's memory errors if it has more computed tokens than ever before."""
        if self.num_computed_tokens > self._most_computed_tokens:
            self._most_computed_tokens, self.num_memory_errors = self.num_computed_tokens, 0

    @property
    def identity_ids(self) -> list[int]:
        """The ids by which the prefix cache knows prompt and output: ``token_ids``, unless there are pictures."""
        if not self.source.images:
            return self.token_ids
        if self._identity_ids is None:
            self._identity_ids = identity_ids(self.source.prompt_token_ids, self.source.images)
        known = self._identity_ids
        known += self.token_ids[len(known) :]
        return known

    def whole_image_at(self, position: int) -> ImageSpan | None:
        """Return the picture inside of which a position is, if one step has to compute all of its tokens."""
        return next((span for span in self.source.images if span.is_whole and span.contains(position)), None)

    @property
    def request_id(self) -> str:
        return self.source.request_id

    @property
    def is_running(self) -> bool:
        """Whether the request has state, and a part in the steps."""
        return self.state is not None

    @property
    def rank(self) -> tuple[int, int]:
        """Order of scheduling: (priority, arrival), lower first."""
        return self.source.priority, self.arrival

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, without output of an earlier attempt."""
        return len(self.source.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token, and the tokens to replay, are left to compute."""
        return 0 < self.num_computed_tokens == len(self.token_ids) - 1 - self.num_to_replay

    @property
    def reads_prompt_rows(self) -> bool:
        """Whether the prompt's hidden rows are needed, for log-probabilities or a pooled vector."""
        return self.prompt_logprobs is not None or self.pooler is not None

    @property
    def computes_prompt(self) -> bool:
        """Whether the prompt is computed even if no token is sampled after it."""
        return self.reads_prompt_rows or self.source.returns_state

    @property
    def can_write_cache(self) -> bool:
        """Whether the prefix cache can keep the request's state: that of an X-LoRA is only a half of it."""
        return self.source.adapter is None or not self.source.adapter.is_xlora

    @property
    def can_read_cache(self) -> bool:
        """Whether the prefix cache can replace the prompt's first rows, because their hidden rows aren't needed."""
        return (
            self.can_write_cache and self.prompt_logprobs is None and (self.pooler is None or self.pooler.can_skip_rows)
        )

    @property
    def has_all_prompt_logprobs(self) -> bool:
        """Whether ``prompt_logprobs`` is complete."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) == self.num_prompt_tokens - 1

    def ending(self) -> FinishReason | None:
        """Return the reason to end after the present last token; None: the request continues."""
        constraint = self.sampling.constraint
        is_finished = constraint is not None and constraint.is_finished
        has_output = len(self.token_ids) > self.num_prompt_tokens
        if has_output and (is_finished or self.token_ids[-1] in self.stop_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_length else None
