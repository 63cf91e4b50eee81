"""CachedSequence: a running sequence's position in the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.prefix_cache.tree import Node
from inference.engine.request import CacheBreakpoint


@dataclass(eq=False, slots=True)
class CachedSequence:
    """A running sequence's position in the tree.

    Attributes:
        digest: Digest of the sequence's namespace.
        path: The full nodes of its computed or found tokens.
        tail: The node of the tokens after ``path``; None: there is none yet.
        start: Position at which the sequence resumed.
        junction: Position at which the sequence diverged from earlier sequences.
        stops: Positions at which prefill stops for a snapshot, ascending.
        last_snapshot: Position of the sequence's latest snapshot.
        marked: Nodes of the sequence's snapshots, which may not be in ``path``.
        breakpoints: Positions that are still to be reached and kept, ascending.
        kept: The breakpoints whose prefix is kept.
        is_kept: Whether its computed tokens enter the tree.
        has_unknown: Whether it isn't known yet that all of its computed rows are usable (``unusable_rows``).
        num_known: Number of its tokens that were computed while that was known; no others enter the tree.
        taken: Slots with its states after such tokens, by position; they become snapshots if the tokens are usable.
    """

    digest: bytes
    path: list[Node] = field(default_factory=list)
    tail: Node | None = None
    start: int = 0
    junction: int = 0
    stops: list[int] = field(default_factory=list)
    last_snapshot: int = 0
    marked: dict[Node, None] = field(default_factory=dict)
    breakpoints: list[CacheBreakpoint] = field(default_factory=list)
    kept: list[CacheBreakpoint] = field(default_factory=list)
    is_kept: bool = True
    has_unknown: bool = False
    num_known: int = 0
    taken: dict[int, int] = field(default_factory=dict)

    def replaced_by(self, position: int) -> int:
        """Return the position whose slot in ``taken`` the state of another position may overwrite; 0: of none.

        Breakpoints are overwritten by later breakpoints only, and the junction not by the states of periodic positions.
        """
        oldest = min(self.taken, key=lambda at: (self._rank(at), at), default=0)
        return oldest if self._rank(oldest) <= self._rank(position) else 0

    def _rank(self, position: int) -> int:
        if any(item.position == position for item in self.breakpoints):
            return 2
        return int(position == self.junction or position in self.stops)
