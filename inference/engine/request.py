"""What goes into the engine and what comes out of it: token ids only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from inference.engine.pooling import Float32Array, Pooling
from inference.engine.sampling.dry import SequenceBreakers
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams
from inference.values.token_constraint import TokenConstraint


class FinishReason(StrEnum):
    """Why a request ended; OpenAI's words, and two of our own."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (of the distribution before temperature and truncation) at one position.

    Attributes:
        token_id: The chosen (or given) token.
        logprob: Its log-probability.
        rank: 1 for the likeliest token.
        top: The likeliest (token id, logprob) pairs, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue.

    Attributes:
        request_id: Unique among the requests in flight.
        prompt_token_ids: At least one id, each below the model's vocab_size.
        params: ``params.n`` is 1 here, ``params.seed`` is set; stop strings are the caller's business.
        eos_token_ids: Ids that end the sequence unless ``ignore_eos``.
        priority: Lower goes first; ties by arrival.
        prior_output_token_ids: Tokens that an earlier attempt already delivered. They count as output
            (penalties, min_tokens, max_tokens, draw positions) and are not emitted again.
        cache_salt: The prefix cache is shared with requests of the same salt only.
        pooling: Instead of tokens, the hidden rows of the prompt are wanted, pooled so; ``max_tokens`` is 0 then.
        constraint: Says which tokens may follow; stands behind ``prior_output_token_ids``. None: all may.
        dry_breakers: Texts over which no match of the DRY penalty reaches. None: there are none.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    prior_output_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""
    pooling: Pooling | None = None
    constraint: TokenConstraint | None = None
    dry_breakers: SequenceBreakers | None = None


@dataclass(slots=True)
class EngineOutput:
    """News of one request after a step.

    Attributes:
        new_token_ids: Tokens sampled in this step (an end-of-sequence or stop token included).
        logprobs: One entry per new token, when asked for.
        prompt_logprobs: For prompt positions 1 … n-1, once, with the first output that follows the prompt's
            last chunk, when asked for; position 0 has none.
        finish_reason: Set exactly once, in the request's last output.
        stop_token_id: The id that ended it, if one did.
        error: With ``FinishReason.ERROR``.
        num_cached_tokens: Prompt tokens whose state was found in the prefix cache.
        cache_miss_reason: Why they aren't all but the last (a ``MissReason``); None: they are, or it hasn't begun.
        pooled: (h,), with the last output of a request with ``pooling`` that wasn't ended early.
    """

    request_id: str
    new_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: BlazrError | None = None
    num_cached_tokens: int = 0
    cache_miss_reason: str | None = None
    pooled: Float32Array | None = None
