"""Odds: how likely the next guess of a request holds.

Guesses come in kinds (``Proposer.kind_of``): an agreement of twelve tokens promises more than one of two. What a kind
has been worth in this engine is where each request begins; its own guesses soon count for more, and are forgotten as
its text goes on. A guess that was only looked at, and compared with the token that came, counts like one that was
verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR_WEIGHT = 4.0
KIND_MEMORY = 1 - 1 / 32
"""Weight of the guesses before, of one kind and all requests, for each further one."""

KIND_WEIGHT = 1.0
"""Guesses of a request that count as much as what is known of their kind."""
RUN_MEMORY = 0.6
RECORD_MEMORY = 0.98
"""Weight of a request's guesses before, for each further run of them and for each token that its text has gone on."""
HINDSIGHT_MEMORY = 0.85
"""The same for each guess that wasn't made: they come one by one, and three that hold by chance aren't a text that
repeats itself."""


@dataclass(slots=True)
class Tally:
    """Guesses whose turn came, and those of them that held."""

    num_tried: float = 0.0
    num_held: float = 0.0

    def fade(self, keep: float) -> None:
        """Count what there is for less."""
        self.num_tried *= keep
        self.num_held *= keep

    def note(self, num_guessed: int, num_accepted: int) -> None:
        """A run was verified; what is behind the first wrong guess says nothing."""
        self.num_tried += min(num_guessed, num_accepted + 1)
        self.num_held += num_accepted


@dataclass(slots=True)
class Record:
    """One request's.

    Attributes:
        tallies: By kind.
        length: Of the output when they were last brought up to date.
        is_read: The proposer has read the text for it (``readings``).
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    length: int = 0
    is_read: bool = False

    def grow(self, length: int) -> None:
        """The output has so many tokens now."""
        if self.tallies and length > self.length:
            keep = RECORD_MEMORY ** (length - self.length)
            for tally in self.tallies.values():
                tally.fade(keep)
        self.length = length


class Odds:
    """What the kinds have been worth.

    Args:
        priors: What is assumed of each kind at first.
    """

    def __init__(self, priors: Sequence[float]) -> None:
        self._kinds = [Tally(PRIOR_WEIGHT, PRIOR_WEIGHT * prior) for prior in priors]

    def of(self, record: Record, kind: int) -> float:
        """Probability that the next guess of this kind holds."""
        known = self._kinds[kind]
        rate = known.num_held / known.num_tried
        own = record.tallies.get(kind)
        return rate if own is None else (own.num_held + KIND_WEIGHT * rate) / (own.num_tried + KIND_WEIGHT)

    def note(self, record: Record, kind: int, num_guessed: int, num_accepted: int) -> None:
        """A run of guesses was verified."""
        self._note(record, kind, num_guessed, num_accepted, RUN_MEMORY)

    def note_hindsight(self, record: Record, kind: int, num_guessed: int, num_accepted: int) -> None:
        """A run of guesses wasn't made, and so many would have held."""
        keep = HINDSIGHT_MEMORY ** min(num_guessed, num_accepted + 1)
        self._note(record, kind, num_guessed, num_accepted, keep)

    def _note(self, record: Record, kind: int, num_guessed: int, num_accepted: int, keep: float) -> None:
        known = self._kinds[kind]
        known.fade(KIND_MEMORY ** min(num_guessed, num_accepted + 1))
        known.note(num_guessed, num_accepted)
        own = record.tallies.get(kind)
        if own is None:
            own = record.tallies[kind] = Tally()
        own.fade(keep)
        own.note(num_guessed, num_accepted)
