"""Request: one sequence on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from inference.engine.pooling import Pooler
from inference.engine.prefix_cache.lookup import Fetched
from inference.engine.request import EngineRequest, FinishReason, TokenLogprobs
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.state_manager import SequenceState
from inference.errors import BlazrError


class RequestStatus(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """Mutable state of a request. The scheduler changes status and state, the engine the tokens.

    Attributes:
        source: As it was asked for.
        arrival: Position in the order of arrival.
        max_tokens: Output tokens at which it ends, earlier attempts included.
        stop_token_ids: All ids that end it, end-of-sequence included.
        token_ids: Prompt and output.
        sampling: For the sampler.
        num_computed_tokens: Tokens whose state exists.
        num_to_replay: Generated tokens whose state existed and had to be given up; they are computed again together
            with the last one (``speculation.rollback``).
        state: Where; None unless running.
        known_ending: Why it ends without a sampled token, once its prompt is computed; None: tokens are sampled.
        error: Why it fails at the end of this step.
        prompt_logprobs: Found so far, for prompt positions from 1; None when not asked for or handed out.
        pooler: Set when the prompt's rows are wanted instead of tokens.
        namespace: Its root in the prefix cache.
        fetched: What was read from disk for it.
        num_cached_tokens: Prompt tokens that the prefix cache had at its first admission; None before that.
        cache_miss_reason: Why not more (a ``MissReason``).
        request_id: Of ``source``.
        num_prompt_tokens: Tokens that were given, without those of an earlier attempt.
        max_length: Prompt and output tokens at which it ends.
        reads_prompt_rows: The prompt's hidden rows are needed, for log-probabilities or a pooled vector.
    """

    source: EngineRequest
    arrival: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    token_ids: list[int]
    sampling: SamplingState
    num_computed_tokens: int = 0
    num_to_replay: int = 0
    status: RequestStatus = RequestStatus.WAITING
    state: SequenceState | None = None
    known_ending: FinishReason | None = None
    error: BlazrError | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    namespace: bytes = b""
    fetched: Fetched | None = None
    num_cached_tokens: int | None = None
    cache_miss_reason: str | None = None
    pooler: Pooler | None = field(init=False, default=None)
    rank: tuple[int, int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_length: int = field(init=False)
    request_id: str = field(init=False)
    reads_prompt_rows: bool = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = self.source.request_id
        self.num_prompt_tokens = len(self.source.prompt_token_ids)
        self.max_length = self.num_prompt_tokens + self.max_tokens
        self.rank = (self.source.priority, self.arrival)
        if self.source.params.prompt_logprobs is not None:
            self.prompt_logprobs = []
        if self.source.pooling is not None:
            self.pooler = Pooler(self.source.pooling, self.num_prompt_tokens)
        self.reads_prompt_rows = self.prompt_logprobs is not None or self.pooler is not None

    @property
    def can_read_cache(self) -> bool:
        """Whether the prefix cache can replace the prompt's first rows: no hidden row of them is read."""
        return self.prompt_logprobs is None and (self.pooler is None or self.pooler.can_skip_rows)

    @property
    def num_output_tokens(self) -> int:
        """Tokens that were generated, in this attempt or an earlier one."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether it generates: nothing is left to compute but its last token, and what is to be replayed."""
        return 0 < self.num_computed_tokens == len(self.token_ids) - 1 - self.num_to_replay

    def ending(self) -> FinishReason | None:
        """Why the request ends with the output token that it has now, if it does."""
        length, sampling = len(self.token_ids), self.sampling
        if length > self.num_prompt_tokens and (
            self.token_ids[-1] in self.stop_token_ids or (sampling.constraint is not None and sampling.is_complete)
        ):
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_length else None

    @property
    def has_all_prompt_logprobs(self) -> bool:
        """Whether ``prompt_logprobs`` is complete."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) == self.num_prompt_tokens - 1
