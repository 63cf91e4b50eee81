"""DRY ("don't repeat yourself"): penalise tokens that would continue a repetition of earlier text.

If the last tokens occur earlier in the sequence, the token that followed them there is penalised by
``multiplier * base ** (length - allowed_length)``, for matches of at least ``allowed_length`` tokens. A match never
includes a sequence breaker.

Source: p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677; bounds as in llama.cpp.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import upload
from inference.engine.sampling.llama_cpp.token_search import TokenIds, repeats_of_end
from inference.engine.sampling.row_ops import entries
from inference.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inference.engine.sampling.sampling_state import SamplingState

MAX_LOG_PENALTY = 88.7228391
"""Logarithm of the greatest float32: matches whose power exceeds it count as long as one whose power doesn't."""

MAX_MATCH = 4096
"""Tokens that are compared at most, where the base is so near to 1 that the bound above is far away."""


class SequenceBreakers(Protocol):
    """Says where a match ends. Shared by requests; it holds no state."""

    def ends_at(self, token_ids: Sequence[int], stop: int) -> bool:
        """Whether a breaker ends within the token before position ``stop``."""


class DryHistory:
    """One request's tokens, in the form that the penalty is computed from.

    Args:
        params: The request's; ``dry_multiplier`` isn't 0.
        token_ids: Of prompt and output.
        breakers: Over which no match reaches; None: there are none.
    """

    def __init__(self, params: SamplingParams, token_ids: Sequence[int], breakers: SequenceBreakers | None) -> None:
        self._params = params
        self._breakers = breakers
        self._size = len(token_ids)
        self._token_ids = np.zeros(max(256, 2 * self._size), dtype=np.int64)
        self._token_ids[: self._size] = token_ids
        self._max_exponent = MAX_MATCH
        if params.dry_base > 1.0 + 1e-6:
            self._max_exponent = min(MAX_MATCH, int(MAX_LOG_PENALTY / math.log(params.dry_base)))
        self._max_match = params.dry_allowed_length + self._max_exponent
        self._num_since_breaker = self._count_since_breaker()

    def copy(self) -> DryHistory:
        """The same history, to go on with separately."""
        other = copy.copy(self)
        other._token_ids = self._token_ids.copy()
        return other

    def append(self, token_id: int) -> None:
        """Count a generated token."""
        if self._size == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
        self._token_ids[self._size] = token_id
        self._size += 1
        self._num_since_breaker = 0 if self._is_breaker(self._size) else self._num_since_breaker + 1

    def penalties(self) -> tuple[TokenIds, npt.NDArray[np.float32]]:
        """(e,) tokens that would continue a repetition, each once, and (e,) what to subtract from their logits."""
        params = self._params
        window = self._size if params.dry_penalty_last_n < 0 else min(self._size, params.dry_penalty_last_n)
        tokens = self._token_ids[self._size - window : self._size]
        allowed = params.dry_allowed_length
        positions, lengths = repeats_of_end(tokens, min(self._num_since_breaker, self._max_match))
        is_long = lengths >= allowed
        if not is_long.any():
            return tokens[:0], np.empty(0, dtype=np.float32)
        token_ids, inverse = np.unique(tokens[positions[is_long]], return_inverse=True)
        longest = np.zeros(len(token_ids), dtype=np.int64)
        np.maximum.at(longest, inverse, lengths[is_long])
        powers = params.dry_base ** np.minimum(longest - allowed, self._max_exponent).astype(np.float64)
        most = float(np.finfo(np.float32).max)
        return token_ids, np.minimum(params.dry_multiplier * powers, most).astype(np.float32)

    def _count_since_breaker(self) -> int:
        longest = min(self._size, self._max_match)
        for num_since in range(longest):
            if self._is_breaker(self._size - num_since):
                return num_since
        return longest

    def _is_breaker(self, stop: int) -> bool:
        return self._breakers is not None and self._breakers.ends_at(cast("Any", self._token_ids), stop)


class Dry:
    """The logits processor: a search in each row's own history, then one change of the logits for all rows."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Only rows with ``dry_multiplier``."""
        chosen = [(at, *row.dry.penalties()) for at, row in enumerate(rows) if row.dry is not None]
        chosen = [item for item in chosen if len(item[1])]
        if chosen:
            places = entries([(at, token_ids) for at, token_ids, _ in chosen], logits.device)
            logits[places] -= upload(np.concatenate([penalties for *_, penalties in chosen]), logits.device)
