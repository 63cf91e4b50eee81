"""PrefixLookup: how much of a sequence's beginning has state in the tree, and why not more. Changes nothing."""

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
    """What is there of a sequence's beginning.

    Attributes:
        num_tokens: Where it can resume.
        num_known: Tokens that agree with an earlier sequence.
        nodes: Full nodes that agree.
        source: Has the state of the first tokens of the block in which it resumes; None: it resumes between blocks.
        state: Node and offset of the recurrent state; None: not needed, or nothing found.
        reason: Why it isn't all; None: it is.
    """

    num_tokens: int = 0
    num_known: int = 0
    nodes: tuple[Node, ...] = ()
    source: Node | None = None
    state: tuple[Node, int] | None = None
    reason: MissReason | None = None


class PrefixLookup:
    """Looks sequences up in a tree.

    Args:
        tree: What is known.
        paged: The model has paged state, which blocks hold.
        fixed: The model has recurrent state, which snapshots hold.
    """

    def __init__(self, tree: PrefixTree, *, paged: bool, fixed: bool) -> None:
        self._tree = tree
        self._width = tree.width
        self._paged = paged
        self._fixed = fixed

    def find(
        self, digest: bytes, tokens: Sequence[int], *, fetched: Fetched | None, with_disk: bool, may_read: bool
    ) -> Match:
        """See ``PrefixCache.find``."""
        limit = len(tokens) - 1
        walk = self._tree.walk(digest, tokens)
        if not may_read:
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
        """Tokens from the first whose paged state is there."""
        present = 0
        for node in walk.nodes:
            rows = self._rows(node, fetched, with_disk)
            present += rows
            if rows < self._width:
                return present
        return present + max((min(self._rows(n, fetched, with_disk), c) for n, c in walk.tails), default=0)

    def _rows(self, node: Node, fetched: Fetched | None, with_disk: bool) -> int:
        """Tokens of a node whose paged state is there."""
        rows = node.rows
        if rows < node.saved_rows and (
            with_disk or (fetched and ("block", node.digest_after(node.saved_rows)) in fetched)
        ):
            rows = node.saved_rows
        return rows

    def _latest_state(
        self, places: Sequence[tuple[Node, int]], limit: int, fetched: Fetched | None, with_disk: bool
    ) -> tuple[Node, int] | None:
        """The latest snapshot up to ``limit``, among nodes that agree with the sequence for so many tokens."""
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
        """A node that has the state of the tokens between the last full block and ``resume``."""
        number, rest = divmod(resume, self._width)
        if number < len(nodes):
            return nodes[number]
        found = [n for n, agreed in tails if min(agreed, self._rows(n, fetched, with_disk)) >= rest]
        return max(found, key=lambda node: node.rows)


def _reason(num_known: int, present: int, resume: int, limit: int, walk: Walk) -> MissReason | None:
    """Why a sequence can't resume at ``limit``; None: it can."""
    if resume >= limit:
        return None
    if num_known == 0:
        return MissReason.COLD
    wanted = min(num_known, limit)
    if resume == wanted:
        return MissReason.DIVERGED
    if present < wanted:
        return MissReason.EVICTED
    for node, agreed in (*((node, len(node.tokens)) for node in walk.nodes), *walk.tails):
        latest = min(wanted, node.start + agreed)
        if any(resume < node.start + offset <= latest for offset in node.evicted_snapshots):
            return MissReason.EVICTED
    return MissReason.NO_SNAPSHOT
