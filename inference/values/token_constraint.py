"""TokenConstraint: what the engine requires of a grammar. ``inference.text.grammars`` implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Which tokens may follow, by the shorter of two lists.

    Attributes:
        ids: (e,) int64, ascending.
        allows: Whether these ids are allowed and all others are not, or the other way round.
    """

    ids: npt.NDArray[np.int64]
    allows: bool


class TokenConstraint(Protocol):
    """Says which tokens may follow in one output. Used by one thread at a time.

    Attributes:
        error: Why the output can't go on; None: it can.
        must_end: Whether the last ``mask`` allows nothing but an end of the sequence.
    """

    error: str | None
    must_end: bool

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing can follow."""
        ...

    def mask(self) -> TokenMask:
        """Which ids may follow; computed once between two tokens. Means nothing with an ``error``."""
        ...

    def allows(self, token_id: int) -> bool:
        """Whether an id is among those of ``mask``; where the mask isn't there yet, found sooner for the one id."""
        ...

    def accept(self, token_id: int) -> None: ...
