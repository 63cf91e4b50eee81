"""Define the counters of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counters since the engine's creation.

    Attributes:
        method: ``ngram``, ``draft`` or ``mtp``.
        num_proposed: Draft tokens that were verified.
        num_accepted: Draft tokens that were accepted.
        lengths: Verifications by number of accepted draft tokens, from 0.
        state_bytes: Memory of the proposer's states.
    """

    method: str
    num_proposed: int
    num_accepted: int
    lengths: tuple[int, ...]
    state_bytes: int
