"""Define the engine's input and output: requests and outputs of token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from inference.engine.adapter import Adapter
from inference.engine.pooling import Float32Array, Pooling
from inference.engine.sampling.llama_cpp.dry import SequenceBreakers
from inference.engine.saved_state import SavedState
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams
from inference.values.token_constraint import TokenConstraint


class FinishReason(StrEnum):
    """Why a request ended: OpenAI's reasons, abort and error."""

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
        rank: Rank of the token by probability, from 1.
        top: The requested number of most probable (token id, logprob) pairs, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CacheBreakpoint:
    """A position of a prompt up to which its state is to be kept.

    Attributes:
        position: Number of tokens before it; fewer than all, because the last one is always computed.
        seconds: How long, unless running requests need the memory.
    """

    position: int
    seconds: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageSpan:
    """A picture's tokens in a prompt; the rows of the vision encoder take the place of their embeddings.

    Attributes:
        start: Position of the first token.
        num_tokens: As many as the encoder gives rows.
        digest: SHA-256 of the picture's file, by which the prefix cache tells pictures apart.
        pixels: (height, width, 3) uint8, kept because a preempted request computes its rows again.
        is_whole: Its tokens attend to each other both ways, so that one step computes all of them.
        owner: Keeps what others find the pixels by, as long as the request runs.
    """

    start: int
    num_tokens: int
    digest: bytes
    pixels: NDArray[np.uint8]
    is_whole: bool = False
    owner: object = None

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + self.num_tokens

    def contains(self, position: int) -> bool:
        """Whether the position is between two of its tokens."""
        return self.start < position < self.stop


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue.

    Attributes:
        request_id: Id, unique among the unfinished requests.
        prompt_token_ids: At least one id, each below the model's vocab_size.
        params: Parameters with ``n`` 1 and a ``seed``, unless greedy. The engine ignores stop strings.
        eos_token_ids: Ids that end the sequence unless ``ignore_eos``.
        priority: Lower goes first; ties by turns of callers, then by arrival.
        prior_output_token_ids: Tokens that an earlier attempt already delivered. They count as output
            (penalties, min_tokens, max_tokens, draw positions) and are not emitted again.
        cache_salt: The request shares the prefix cache with requests of the same salt only.
        pooling: Return the pooled hidden rows of the prompt instead of tokens; requires ``max_tokens`` 0.
        constraint: Restricts the next tokens; its position is after ``prior_output_token_ids``. None: no restriction.
        dry_breakers: Texts over which no match of the DRY penalty reaches. None: there are none.
        saved_state: State of the first tokens of the prompt, after which the request goes on. None: there is none.
        returns_state: Return the state after the prompt; requires ``max_tokens`` 0.
        caller: Name of the caller, which shares the prefill tokens of a step with other callers of its priority.
        cache_breakpoints: Positions of the prompt at which the prefix cache keeps its state, ascending.
        adapter: The LoRA adapter that all of its rows go through; None: the base alone.
        images: The prompt's pictures, in order; not with ``saved_state`` or ``returns_state``.
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
    saved_state: SavedState | None = None
    returns_state: bool = False
    caller: str = ""
    cache_breakpoints: tuple[CacheBreakpoint, ...] = ()
    adapter: Adapter | None = None
    images: tuple[ImageSpan, ...] = ()


@dataclass(slots=True)
class EngineOutput:
    """New results of one request after a step.

    Attributes:
        new_token_ids: Tokens sampled in this step (an end-of-sequence or stop token included).
        logprobs: One entry per new token, if requested.
        prompt_logprobs: One entry for each prompt position 1 … n-1, if requested; set once, in the first output after
            the prompt's last chunk.
        finish_reason: Set exactly once, in the request's last output.
        stop_token_id: The stop token that ended the request, if any.
        error: The error of a request with ``FinishReason.ERROR``.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        cache_miss_reason: Why fewer than all but the last prompt token were found (a ``MissReason``). None: all were
            found, or the request was not admitted yet.
        admitted_at: ``time.monotonic()`` when the request got its place in the steps; 0: it has none yet.
        pooled: (h,), in the last output of a completed request with ``pooling``.
        saved_state: In the last output of a completed request with ``returns_state``.
        kept_prefixes: The prefixes of ``cache_breakpoints`` that the prefix cache keeps so far.
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
    admitted_at: float = field(default=0.0, compare=False)
    pooled: Float32Array | None = None
    saved_state: SavedState | None = None
    kept_prefixes: tuple[CacheBreakpoint, ...] = ()
