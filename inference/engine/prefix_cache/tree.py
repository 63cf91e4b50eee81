"""PrefixTree: which token sequences are known, and where the state of their prefixes is. Numbers only.

A node stands for up to ``width`` tokens behind its parent's; only full nodes have children. So the node at depth d
begins at position d · width, and with paged state it is one block. A node holds what is known of the prefix that
ends in it: the block with its tokens' paged state, the snapshots of recurrent state after some of its tokens, and
which of both have a file on disk.

A node is live while it, or a node behind it, holds state or has users. Dead nodes are kept, up to a bound, as a
record of what was evicted; the one that died first is removed first.

Roots are namespaces: nothing is ever found across them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.engine.prefix_cache.state_access import Payload

DIGEST_BYTES = 16
MAX_SIBLINGS_COMPARED = 256
"""Siblings with the same first token that are looked at for the longest common beginning, the newest first."""


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens behind its parent's.

    Attributes:
        parent: None for a root.
        tokens: At least one, but none for a root. Those of a node that isn't full may still grow.
        start: Position of the first.
        block: Block of paged state; 0: none.
        rows: Tokens, from the first, whose state ``block`` holds.
        epoch: Counts how often the block was taken away, so that a copy can tell whether it is still valid.
        num_users: Running sequences behind it.
        num_live_children: Children that the tree counts as live.
        counts_as_live: ``is_live`` when ``PrefixTree.update`` saw it last.
        saved_rows: Tokens whose paged state is on disk.
        snapshots: Recurrent state after the first n tokens, by n.
        evicted_snapshots: The n of those that were evicted.
        saved_snapshots: The n of the snapshots on disk.
        full: Full children by their tokens.
        siblings: All children by their first token.
    """

    parent: Node | None
    tokens: tuple[int, ...]
    start: int
    block: int = 0
    rows: int = 0
    epoch: int = 0
    num_users: int = 0
    num_live_children: int = 0
    counts_as_live: bool = False
    saved_rows: int = 0
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    evicted_snapshots: set[int] = field(default_factory=set)
    saved_snapshots: set[int] = field(default_factory=set)
    full: dict[tuple[int, ...], Node] = field(default_factory=dict)
    siblings: dict[int, list[Node]] = field(default_factory=dict)
    digest_: bytes = b""

    @property
    def stop(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)

    @property
    def is_live(self) -> bool:
        """Whether it holds state, is used, or leads to a node that does."""
        return bool(
            self.num_users
            or self.block
            or self.num_live_children
            or self.snapshots
            or self.saved_rows
            or self.saved_snapshots
        )

    def digest_after(self, count: int) -> bytes:
        """Identifies the namespace and all tokens up to the node's ``count``-th."""
        if self.parent is None:
            return self.digest_
        if count == len(self.tokens) and self.digest_:
            return self.digest_
        return chained(self.parent.digest, self.tokens[:count])

    @property
    def digest(self) -> bytes:
        """``digest_after`` all tokens."""
        found = self.digest_after(len(self.tokens))
        if self.full:  # with children it doesn't grow any more
            self.digest_ = found
        return found


@dataclass(eq=False, slots=True)
class Snapshot:
    """The recurrent state behind the first ``offset`` tokens of a node.

    Attributes:
        slot: The state slot; 0: the state is in host memory.
        payload: The state in host memory; None: it is in a slot.
        expected_gain: Tokens that need not be computed when it is used.
        value: What eviction orders by.
    """

    node: Node
    offset: int
    slot: int
    expected_gain: int
    value: float
    payload: Payload | None = None

    @property
    def position(self) -> int:
        """Tokens of the sequence that it covers."""
        return self.node.start + self.offset


def chained(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of a run of tokens behind what ``parent`` identifies."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def root_digest(namespace: str) -> bytes:
    """Digest of a namespace's empty prefix."""
    return hashlib.blake2b(b"namespace\0" + namespace.encode(), digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a sequence is known.

    Attributes:
        nodes: Full nodes whose tokens all agree.
        tails: The nodes behind them that agree for some tokens, each with how many; the longest first.
        num_known: Tokens that agree in all.
    """

    nodes: list[Node]
    tails: list[tuple[Node, int]]
    num_known: int


class PrefixTree:
    """All namespaces of one engine.

    Whoever changes what a node holds, other than by a method of this class, calls ``update`` after it.

    Args:
        width: Tokens of a full node.
        max_dead: Dead nodes that are kept.

    Attributes:
        num_nodes: Nodes there are, roots not counted.
        num_dead: How many of them are dead.
    """

    def __init__(self, width: int, max_dead: int) -> None:
        self.width = width
        self.num_nodes = 0
        self.num_dead = 0
        self._max_dead = max_dead
        self._roots: dict[bytes, Node] = {}
        self._dead_leaves: OrderedDict[Node, None] = OrderedDict()

    @property
    def num_roots(self) -> int:
        """Namespaces that have nodes."""
        return len(self._roots)

    def walk(self, digest: bytes, tokens: Sequence[int]) -> Walk:
        """Compare a sequence with what is known of its namespace."""
        node = self._roots.get(digest)
        nodes: list[Node] = []
        if node is None:
            return Walk(nodes, [], 0)
        width, start = self.width, 0
        while True:
            piece = tuple(tokens[start : start + width])
            child = node.full.get(piece)
            if child is None:
                break
            nodes.append(child)
            node, start = child, start + width
        tails = agreeing(node, piece)
        return Walk(nodes, tails, start + (tails[0][1] if tails else 0))

    def child(self, parent: Node | bytes, tokens: tuple[int, ...]) -> Node:
        """The child that begins with these tokens, found, grown or made.

        A new node is dead until it is given something and updated, or acquired; the caller does that before the next
        node can die.

        Args:
            parent: A full node, or a namespace's digest.
            tokens: One to ``width``.
        """
        if isinstance(parent, bytes):
            parent = self._roots.setdefault(parent, Node(None, (), 0, digest_=parent))
        found = parent.full.get(tokens)
        if found is not None:
            return found
        count = len(tokens)
        for other in reversed(parent.siblings.get(tokens[0], [])[-MAX_SIBLINGS_COMPARED:]):
            if other.tokens[:count] == tokens:
                return other
            if len(other.tokens) < count and tokens[: len(other.tokens)] == other.tokens:
                other.tokens = tokens
                other.digest_ = b""
                if count == self.width:
                    parent.full[tokens] = other
                return other
        made = Node(parent, tokens, parent.stop)
        self.num_nodes += 1
        self.num_dead += 1
        parent.siblings.setdefault(tokens[0], []).append(made)
        if count == self.width:
            parent.full[tokens] = made
        self._dead_leaves.pop(parent, None)
        self._dead_leaves[made] = None
        return made

    def acquire(self, node: Node) -> None:
        """One more running sequence is behind the node."""
        node.num_users += 1
        self.update(node)

    def release(self, node: Node) -> None:
        """Undo ``acquire``."""
        node.num_users -= 1
        self.update(node)

    def update(self, node: Node) -> None:
        """Count a node and those before it anew after it gained or lost something, and keep the bound on dead ones."""
        at = node
        while at.parent is not None and at.counts_as_live != at.is_live:
            at.counts_as_live = not at.counts_as_live
            if at.counts_as_live:
                self.num_dead -= 1
                self._dead_leaves.pop(at, None)
                at.parent.num_live_children += 1
            else:
                self.num_dead += 1
                if not at.siblings:
                    self._dead_leaves[at] = None
                at.parent.num_live_children -= 1
            at = at.parent
        while self.num_dead > self._max_dead:
            # A dead node has no live one behind it, so as long as there is one, there is a leaf among them.
            self._remove(self._dead_leaves.popitem(last=False)[0])

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            for group in node.siblings.values():
                pending += group

    def _remove(self, leaf: Node) -> None:
        """Remove a dead node without children; its parent, if that makes it one too, is the next to go."""
        parent = leaf.parent
        assert parent is not None
        group = parent.siblings[leaf.tokens[0]]
        group.remove(leaf)
        if not group:
            del parent.siblings[leaf.tokens[0]]
        if parent.full.get(leaf.tokens) is leaf:
            del parent.full[leaf.tokens]
        self.num_nodes -= 1
        self.num_dead -= 1
        if parent.siblings:
            return
        if parent.parent is None:
            del self._roots[parent.digest_]
        elif not parent.counts_as_live:
            self._dead_leaves[parent] = None
            self._dead_leaves.move_to_end(parent, last=False)


def agreeing(parent: Node, tokens: tuple[int, ...]) -> list[tuple[Node, int]]:
    """Children that begin as ``tokens`` do, each with the number of tokens that agree; the longest first."""
    if not tokens:
        return []
    found: list[tuple[Node, int]] = []
    for other in reversed(parent.siblings.get(tokens[0], [])[-MAX_SIBLINGS_COMPARED:]):
        count = 1
        for left, right in zip(other.tokens[1:], tokens[1:], strict=False):
            if left != right:
                break
            count += 1
        found.append((other, count))
    found.sort(key=lambda entry: -entry[1])
    return found
