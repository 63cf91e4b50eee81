"""DRY ("don't repeat yourself"): penalise tokens that would continue a repetition of earlier text.

If the last tokens occur earlier in the sequence, the token that followed them there is penalised by
``multiplier * base ** (length - allowed_length)``, for matches of at least ``allowed_length`` tokens. A match never
includes a sequence breaker, and a token that contains a whole breaker isn't penalised.

The repeat lengths of all positions are kept, and advanced with each token, so a penalty costs the same whether the text
repeats itself or not.

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
from inference.engine.sampling.llama_cpp.token_search import (
    RepeatLengths,
    TokenIds,
    advance_repeat_lengths,
    repeat_lengths,
)
from inference.engine.sampling.row_ops import entries
from inference.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inference.engine.sampling.sampling_state import SamplingState

MAX_LOG_PENALTY = 88.7228391
"""Logarithm of the largest float32. A match whose power exceeds it counts as the longest match whose power doesn't."""

MAX_MATCH = 4096
"""Maximum tokens beyond ``dry_allowed_length`` that count; for a base so near to 1 that the bound above is far away."""


class SequenceBreakers(Protocol):
    """Finds sequence breakers in a sequence of tokens. Shared by requests, without state."""

    def ends_at(self, token_ids: Sequence[int], stop: int) -> bool:
        """Whether a breaker ends within the token before position ``stop``."""


class DryHistory:
    """The tokens of one request, with the repeat length of each position.

    Args:
        params: Parameters of the request; ``dry_multiplier`` isn't 0.
        token_ids: Ids of prompt and output.
        breakers: Sequence breakers; None: there are none.
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
        self._has_breaker: dict[int, bool] = {}  # by token id; copies share it
        self._repeat_lengths: RepeatLengths = repeat_lengths(self._token_ids[: self._size])
        self._num_since_breaker = self._count_since_breaker()

    def copy(self) -> DryHistory:
        """Return an independent copy."""
        other = copy.copy(self)  # the repeat lengths are replaced, never changed in place
        other._token_ids = self._token_ids.copy()
        return other

    def append(self, token_id: int) -> None:
        """Record a generated token."""
        token_ids = self._token_ids[: self._size]
        self._repeat_lengths = advance_repeat_lengths(self._repeat_lengths, token_ids, token_id)
        if self._size == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
        self._token_ids[self._size] = token_id
        self._size += 1
        self._num_since_breaker = 0 if self._is_breaker(self._size) else self._num_since_breaker + 1

    def penalties(self) -> tuple[TokenIds, npt.NDArray[np.float32]]:
        """Return (e,) distinct tokens that would continue a repetition, and the (e,) penalty of each."""
        params, allowed = self._params, self._params.dry_allowed_length
        window = self._size if params.dry_penalty_last_n < 0 else min(self._size, params.dry_penalty_last_n)
        start = self._size - window
        positions = start + np.flatnonzero(self._repeat_lengths[start:] >= allowed)
        # A match lies within the window, and after the last breaker.
        lengths = np.minimum(self._repeat_lengths[positions], positions - start).clip(max=self._num_since_breaker)
        is_long = lengths >= allowed
        token_ids, inverse = np.unique(self._token_ids[positions[is_long]], return_inverse=True)
        longest = np.zeros(len(token_ids), dtype=np.int64)
        np.maximum.at(longest, inverse, lengths[is_long])
        is_penalised = np.array([not self._contains_breaker(token) for token in token_ids.tolist()], dtype=bool)
        token_ids, longest = token_ids[is_penalised], longest[is_penalised]
        powers = params.dry_base ** np.minimum(longest - allowed, self._max_exponent).astype(np.float64)
        most = float(np.finfo(np.float32).max)
        return token_ids, np.minimum(params.dry_multiplier * powers, most).astype(np.float32)

    def _count_since_breaker(self) -> int:
        """Return the number of tokens after the last breaker, or the longest repeat length if that is smaller."""
        longest = int(self._repeat_lengths.max(initial=0))
        for num_since in range(longest):
            if self._is_breaker(self._size - num_since):
                return num_since
        return longest

    def _contains_breaker(self, token_id: int) -> bool:
        if token_id not in self._has_breaker:
            self._has_breaker[token_id] = self._breakers is not None and self._breakers.ends_at((token_id,), 1)
        return self._has_breaker[token_id]

    def _is_breaker(self, stop: int) -> bool:
        return self._breakers is not None and self._breakers.ends_at(cast("Any", self._token_ids), stop)


class Dry:
    """Logits processor: subtract the penalties of all rows at once."""

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Change the rows with a ``DryHistory``."""
        chosen = [(at, *row.dry.penalties()) for at, row in enumerate(rows) if row.dry is not None]
        chosen = [item for item in chosen if len(item[1])]
        if chosen:
            places = entries([(at, token_ids) for at, token_ids, _ in chosen], logits.device)
            logits[places] -= upload(np.concatenate([penalties for *_, penalties in chosen]), logits.device)
