"""SamplingState: hold the parameters and the token history of one request for the sampler."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from inference.engine.sampling.llama_cpp.dry import DryHistory, SequenceBreakers
from inference.values.sampling_params import SamplingParams
from inference.values.token_constraint import TokenConstraint


class TokenCounts:
    """Count how often each distinct token of a request was generated, with one update for each new token."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        output_ids, output_counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        prompt_ids = np.setdiff1d(np.asarray(prompt, dtype=np.int64), output_ids)
        self._size = len(output_ids) + len(prompt_ids)
        self._ids = np.zeros(max(64, 2 * self._size), dtype=np.int64)
        self._counts = np.zeros(len(self._ids), dtype=np.float32)
        self._ids[: self._size] = np.concatenate([output_ids, prompt_ids])
        self._counts[: len(output_ids)] = output_counts
        self._index = {token: at for at, token in enumerate(self._ids[: self._size].tolist())}

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """(u,) distinct tokens."""
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """(u,) occurrences in the output; 0: in the prompt only."""
        return self._counts[: self._size]

    def copy(self) -> TokenCounts:
        """Return an independent copy."""
        other = copy.copy(self)
        other._ids, other._counts, other._index = self._ids.copy(), self._counts.copy(), self._index.copy()
        return other

    def add(self, token_id: int) -> None:
        """Count a generated token."""
        at = self._index.get(token_id)
        if at is None:
            at = self._size
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[at] = token_id
            self._index[token_id] = at
            self._size += 1
        self._counts[at] += 1


class SamplingState:
    """One request's parameters and history, in the form that the sampler reads.

    Attributes:
        params: The request's parameters.
        num_output_tokens: Tokens generated so far, earlier attempts included: the position of the next draw.
        greedy: Whether the argmax is chosen.
        stop_ids: Ids that end the sequence; masked until ``min_tokens``.
        bias_ids, biases: ``logit_bias`` as arrays.
        counts: Token counts for penalties; None without penalties.
        dry: History for the DRY penalty; None without it.
        uses_chain: Whether ``llama_cpp.chain`` draws the token.
        mu: Maximum surprise, in bits, of mirostat's next token.
        surprise: Surprise, in bits, of mirostat's last token; ``append`` adapts ``mu`` to it.
        constraint: Restricts the next tokens; None: no restriction.
        is_plain: Whether the request needs only the argmax of unchanged logits.
    """

    def __init__(
        self,
        params: SamplingParams,
        stop_ids: Iterable[int],
        prompt: Sequence[int],
        output: Sequence[int],
        constraint: TokenConstraint | None = None,
        dry_breakers: SequenceBreakers | None = None,
    ) -> None:
        self.params = params
        self.constraint = constraint
        self.num_output_tokens = len(output)
        self.greedy = params.is_greedy
        self.stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        self.bias_ids = np.fromiter(params.logit_bias, np.int64, len(params.logit_bias))
        self.biases = np.fromiter(params.logit_bias.values(), np.float32, len(self.bias_ids))
        repeats = params.repetition_penalty != 1.0
        is_penalised = repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        # Presence and frequency penalties count the output only.
        self.counts = TokenCounts(prompt if repeats else (), output) if is_penalised else None
        self.dry: DryHistory | None = None
        if params.dry_multiplier and params.dry_penalty_last_n:
            self.dry = DryHistory(params, [*prompt, *output], dry_breakers)
        self.uses_chain = not self.greedy and params.uses_chain
        self.mu = 2.0 * params.mirostat_tau
        self.surprise = params.mirostat_tau
        self.is_plain = (
            self.greedy
            and params.logprobs is None
            and params.min_tokens == 0
            and constraint is None
            and self.counts is None
            and self.dry is None
            and len(self.bias_ids) == 0
        )

    @property
    def is_below_min_tokens(self) -> bool:
        """Whether the sequence must not end yet."""
        return self.num_output_tokens < self.params.min_tokens

    @property
    def is_forward_only(self) -> bool:
        """Whether the state can't be copied: constraints can't go back, and mirostat depends on each draw."""
        return self.constraint is not None or (self.uses_chain and self.params.mirostat > 0)

    def copy(self) -> SamplingState:
        """Return an independent copy, for draft tokens that may be rejected."""
        assert not self.is_forward_only
        other = copy.copy(self)
        if self.counts is not None:
            other.counts = self.counts.copy()
        if self.dry is not None:
            other.dry = self.dry.copy()
        return other

    def append(self, token_id: int) -> None:
        """Record a generated token."""
        self.num_output_tokens += 1
        if self.counts is not None:
            self.counts.add(token_id)
        if self.dry is not None:
            self.dry.append(token_id)
        if self.uses_chain and self.params.mirostat:
            self.mu -= self.params.mirostat_eta * (self.surprise - self.params.mirostat_tau)
        if self.constraint is not None:
            self.constraint.accept(token_id)
