"""PrefixLookup: find the longest prefix of a sequence with state in the tree, without changes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.engine.prefix_cache.disk import Key
from inference.engine.prefix_cache.state_access import Payload
from inference.engine.prefix_cache.stats import MissReason
from inference.engine.prefix_cache.tree import Node, PrefixTree, Walk

Fetched = Mapping[Key, Payload]


@dataclass(frozen=True, slots=True)
class Match:
    """The cached prefix of a sequence.

    Attributes:
        num_tokens: Number of cached tokens, after which the sequence can resume.
        num_known: Number of first tokens that agree with an earlier sequence.
        nodes: Full nodes that agree with the sequence.
        source: Node with the state of the partial block before the resume position; None: there is no partial block.
        state: Node and offset of the recurrent state; None: not needed, or not found.
        reason: Why the prefix isn't the whole sequence; None: it is.
    """

    num_tokens: int = 0
    num_known: int = 0
    nodes: tuple[Node, ...] = ()
    source: Node | None = None
    state: tuple[Node, int] | None = None
    reason: MissReason | None = None


class PrefixLookup:
    """Look up sequences in a tree.

    Args:
        tree: Tree of known sequences.
        paged: Whether the model has paged state, which blocks hold.
        fixed: Whether the model has recurrent state, which snapshots hold.
    """

    def __init__(self, tree: PrefixTree, *, paged: bool, fixed: bool) -> None:
        self._tree = tree
        self._width = tree.width
        self._paged = paged
        self._fixed = fixed

    def find(
        self, digest: bytes, tokens: Sequence[int], *, fetched: Fetched | None, with_disk: bool, can_read: bool
    ) -> Match:
        """See ``PrefixCache.find``."""
        limit = len(tokens) - 1
        walk = self._tree.walk(digest, tokens)
        if not can_read:
            return Match(num_known=walk.num_known, reason=MissReason.NEEDS_ALL_ROWS if limit else None)
        nodes, width = walk.nodes, self._width
        present = self._num_present(walk, fetched, with_disk) if self._paged else walk.num_known
        resume = min(present, limit)
        state: tuple[Node, int] | None = None
        if self._fixed:
            places = [(node, width) for node in nodes[: present // width + 1]] + walk.tails
            state = self._latest_state(places, resume, fetched, with_disk)
            resume = 0 if state is None else state[0].start + state[1]
        source = self._source(nodes, walk.tails, resume, fetched, with_disk) if self._paged and resume % width else None
        reason = _reason(walk.num_known, present, resume, limit, walk)
        return Match(resume, walk.num_known, tuple(nodes), source, state, reason)

    def _num_present(self, walk: Walk, fetched: Fetched | None, with_disk: bool) -> int:
        """Return the number of first tokens with paged state."""
        present = 0
        for node in walk.nodes:
            rows = self._rows(node, fetched, with_disk)
            present += rows
            if rows < self._width:
                return present
        return present + max((min(self._rows(n, fetched, with_disk), c) for n, c in walk.tails), default=0)

    def _rows(self, node: Node, fetched: Fetched | None, with_disk: bool) -> int:
        """Return the number of a node's first tokens with paged state."""
        rows = node.rows
        if rows < node.saved_rows and (
            with_disk or (fetched and ("block", node.digest_after(node.saved_rows)) in fetched)
        ):
            rows = node.saved_rows
        return rows

    def _latest_state(
        self, places: Sequence[tuple[Node, int]], limit: int, fetched: Fetched | None, with_disk: bool
    ) -> tuple[Node, int] | None:
        """Return the latest snapshot up to ``limit``; ``places`` has nodes, each with its number of agreeing tokens."""
        best: tuple[Node, int] | None = None
        position = 0
        for node, agreed in reversed(places):
            if node.start + agreed <= position:
                continue
            offsets = set(node.snapshots)
            if with_disk:
                offsets |= node.saved_snapshots
            elif fetched:
                offsets |= {n for n in node.saved_snapshots if ("state", node.digest_after(n)) in fetched}
            for offset in offsets:
                if offset <= agreed and position < node.start + offset <= limit:
                    best, position = (node, offset), node.start + offset
        return best

    def _source(
        self,
        nodes: Sequence[Node],
        tails: Sequence[tuple[Node, int]],
        resume: int,
        fetched: Fetched | None,
        with_disk: bool,
    ) -> Node:
        """Return a node with the state of the tokens between the last full block and ``resume``."""
        number, rest = divmod(resume, self._width)
        if number < len(nodes):
            return nodes[number]
        found = [n for n, agreed in tails if min(agreed, self._rows(n, fetched, with_disk)) >= rest]
        return max(found, key=lambda node: node.rows)


def _reason(num_known: int, present: int, resume: int, limit: int, walk: Walk) -> MissReason | None:
    """Return why a sequence can't resume at ``limit``; None: it can."""
    if resume >= limit:
        return None
    if num_known == 0:
        return MissReason.COLD
    reusable = min(num_known, limit)
    if resume == reusable:
        return MissReason.DIVERGED
    if present < reusable:
        return MissReason.EVICTED
    for node, agreed in (*((node, len(node.tokens)) for node in walk.nodes), *walk.tails):
        latest = min(reusable, node.start + agreed)
        if any(resume < node.start + offset <= latest for offset in node.evicted_snapshots):
            return MissReason.EVICTED
    return MissReason.NO_SNAPSHOT
