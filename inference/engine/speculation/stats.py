"""SpeculationStats: counters of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counters since the engine was made.

    Attributes:
        method: ``ngram`` or ``draft``.
        num_proposed: Draft tokens that were verified.
        num_accepted: Those of them that are in the output.
        lengths: Verifications by number of accepted draft tokens, from 0.
        state_bytes: Memory of the proposer's states.
    """

    method: str
    num_proposed: int
    num_accepted: int
    lengths: tuple[int, ...]
    state_bytes: int
