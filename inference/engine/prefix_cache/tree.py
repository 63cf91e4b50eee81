"""PrefixTree: the tree of known token sequences, with the location of their prefixes' state.

A node has up to ``width`` tokens that follow its parent's tokens; only full nodes have children. So the node at depth d
begins at position d · width, and with paged state a node is one block. A node records the block with its tokens' paged
state, the snapshots of recurrent state after some of its tokens, and which of both have a file on disk.

A node is live while it or a descendant holds state or has users. Dead nodes are kept, up to a bound, to recognise
evicted prefixes; the oldest dead leaf is removed first.

Roots are namespaces: a search never crosses them.
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
"""Siblings with the same first token that are compared for the longest common prefix, the newest first."""


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens that follows the parent's tokens.

    Attributes:
        parent: The parent; None for a root.
        tokens: At least one token; none for a root. Tokens can be appended until the node is full.
        start: Position of the first token.
        block: Block of paged state; 0: none.
        rows: Number of first tokens whose state ``block`` holds.
        epoch: Number of times that the block was detached; a copy is valid if it hasn't changed meanwhile.
        num_users: Running sequences that use the node or a descendant.
        num_live_children: Children that the tree counts as live.
        counts_as_live: ``is_live`` at the last ``PrefixTree.update``.
        saved_rows: Number of first tokens whose paged state is on disk.
        snapshots: Snapshot after the first n tokens, by n.
        evicted_snapshots: The n of the evicted snapshots.
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
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def is_live(self) -> bool:
        """Whether the node or a descendant holds state or is used."""
        return bool(
            self.num_users
            or self.block
            or self.num_live_children
            or self.snapshots
            or self.saved_rows
            or self.saved_snapshots
        )

    def digest_after(self, count: int) -> bytes:
        """Return the digest of the namespace and all tokens up to the node's ``count``-th."""
        if self.parent is None:
            return self.digest_
        if count == len(self.tokens) and self.digest_:
            return self.digest_
        return chained(self.parent.digest, self.tokens[:count])

    @property
    def digest(self) -> bytes:
        """``digest_after`` all tokens of the node."""
        found = self.digest_after(len(self.tokens))
        if self.full:  # a node with children gets no more tokens
            self.digest_ = found
        return found


@dataclass(eq=False, slots=True)
class Snapshot:
    """The recurrent state after the first ``offset`` tokens of a node.

    Attributes:
        slot: The state slot; 0: the state is in host memory.
        payload: The state in host memory; None: it is in a slot.
        expected_gain: Tokens that a use of the snapshot saves.
        value: Order of eviction, the lowest first.
        kept_until: Time until which all others are evicted first.
    """

    node: Node
    offset: int
    slot: int
    expected_gain: int
    value: float
    payload: Payload | None = None
    kept_until: float = 0.0

    @property
    def position(self) -> int:
        """Number of the sequence's tokens before the snapshot."""
        return self.node.start + self.offset


def chained(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the digest of a run of tokens after the prefix with the digest ``parent``."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def root_digest(namespace: str) -> bytes:
    """Return the digest of a namespace's empty prefix."""
    encoded = namespace.encode("utf-8", "surrogatepass")  # a salt may be any text that a message can carry
    return hashlib.blake2b(b"namespace\0" + encoded, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Walk:
    """The part of a sequence that the tree knows.

    Attributes:
        nodes: Full nodes whose tokens all agree.
        tails: Children of the last full node that agree in their first tokens, each with that number; longest first.
        num_known: Number of first tokens of the sequence that agree.
    """

    nodes: list[Node]
    tails: list[tuple[Node, int]]
    num_known: int


class PrefixTree:
    """The tree of all namespaces of one engine.

    Callers that change a node's state, other than by a method of this class, must call ``update`` afterwards.

    Args:
        width: Tokens of a full node.
        max_dead: Maximum dead nodes that are kept.

    Attributes:
        num_nodes: Number of nodes without the roots.
        num_dead: Number of dead nodes.
    """

    def __init__(self, width: int, max_dead: int) -> None:
        self.width = width
        self.num_nodes = 0
        self.num_dead = 0
        self._max_dead = max_dead
        self._roots: dict[bytes, Node] = {}
        self._dead_leaves: OrderedDict[Node, None] = OrderedDict()

    def walk(self, digest: bytes, tokens: Sequence[int]) -> Walk:
        """Find the known part of a sequence in its namespace."""
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
        """Return the child that begins with these tokens; extend a shorter child or create one if needed.

        A new node is dead until the caller acquires it, or gives it state and calls ``update``. The caller must do so
        before another node can die.

        Args:
            parent: A full node, or a namespace's digest.
            tokens: One to ``width`` tokens.
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
        """Count one more running sequence that uses the node."""
        node.num_users += 1
        self.update(node)

    def release(self, node: Node) -> None:
        """Undo ``acquire``."""
        node.num_users -= 1
        self.update(node)

    def update(self, node: Node) -> None:
        """Recount a node and its ancestors after a change of its state, and remove dead nodes over the bound."""
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
            # All descendants of a dead node are dead, so that a dead leaf exists as long as a dead node does.
            self._remove(self._dead_leaves.popitem(last=False)[0])

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes but the roots, parents first."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            for group in node.siblings.values():
                pending += group

    def _remove(self, leaf: Node) -> None:
        """Remove a dead leaf; if its parent becomes a dead leaf, the parent is the next to be removed."""
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
    """Return the children with the same first token, each with its number of agreeing tokens, longest first."""
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
