"""DiskIndex: record which nodes of the tree have files, and write and read the files of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from inference.engine.prefix_cache.disk import DiskTier, Entry, Key, Kind
from inference.engine.prefix_cache.state_access import Payload, StateAccess
from inference.engine.prefix_cache.tree import Node, PrefixTree, Snapshot


class DiskIndex:
    """Maintain ``Node.saved_rows`` and ``Node.saved_snapshots``; the constructor adds existing files to the tree.

    Args:
        tier: Disk tier with the files.
        tree: Tree of the prefix cache.
        access: Copies states.
    """

    def __init__(self, tier: DiskTier, tree: PrefixTree, access: StateAccess) -> None:
        self.tier = tier
        self._tree = tree
        self._access = access
        self._nodes: dict[Key, tuple[Node, int]] = {}
        self._read_all()

    def save(self, nodes: Sequence[Node]) -> None:
        """Write the state of nodes that isn't on disk, and mark their existing files as used now."""
        stamp = time.time_ns()
        used: list[Entry] = []
        for node in nodes:
            if node.rows > node.saved_rows:
                self._save_block(node, stamp)
            elif node.saved_rows:
                used.append(self._entry("block", node, node.saved_rows))
            for offset, snapshot in node.snapshots.items():
                if offset in node.saved_snapshots:
                    used.append(self._entry("state", node, offset))
                else:
                    self._save_snapshot(node, snapshot, stamp)
        if used:
            self.tier.touch(used, stamp)

    def load(self, blocks: Sequence[Node], state: tuple[Node, int] | None) -> Future[Mapping[Key, Payload]]:
        """Start to read the blocks of nodes, and a snapshot."""
        entries = [self._entry("block", node, node.saved_rows) for node in blocks]
        if state is not None and state[1] not in state[0].snapshots:
            entries.append(self._entry("state", *state))
        return self.tier.load(entries)

    def poll(self) -> None:
        """Update the nodes whose files no longer exist."""
        while self.tier.missing:
            key = self.tier.missing.popleft()
            node, count = self._nodes.pop(key, (None, 0))
            if node is None:
                continue
            if key[0] == "state":
                node.saved_snapshots.discard(count)
            elif node.saved_rows == count:
                node.saved_rows = 0
            self._tree.update(node)

    def flush(self) -> None:
        """Wait until all queued work is done."""
        self.tier.flush()
        self.poll()

    def close(self) -> None:
        """Write all queued entries and end the threads."""
        self.tier.close()

    def _save_block(self, node: Node, stamp: int) -> None:
        block, rows, epoch, shorter = node.block, node.rows, node.epoch, node.saved_rows
        entry = self._entry("block", node, rows)
        size = rows * self._access.token_bytes

        def read() -> Payload:
            return self._access.read_block(block, rows)

        def is_intact() -> bool:
            # The pool allocates the block again only after its node was detached, which raises the epoch.
            return node.epoch == epoch

        if self._offer(entry, size, read, is_intact, stamp, node, rows):
            if shorter:
                self._nodes.pop(("block", node.digest_after(shorter)), None)
                self.tier.remove(self._entry("block", node, shorter))
            node.saved_rows = rows

    def _save_snapshot(self, node: Node, snapshot: Snapshot, stamp: int) -> None:
        slot, payload, offset = snapshot.slot, snapshot.payload, snapshot.offset

        def read() -> Payload:
            return self._access.read_slot(slot) if payload is None else payload

        def is_intact() -> bool:
            return payload is not None or snapshot.slot == slot

        entry = self._entry("state", node, offset)
        if self._offer(entry, self._access.slot_bytes, read, is_intact, stamp, node, offset):
            node.saved_snapshots.add(offset)

    def _offer(
        self,
        entry: Entry,
        size: int,
        read: Callable[[], Payload],
        is_intact: Callable[[], bool],
        stamp: int,
        node: Node,
        count: int,
    ) -> bool:
        if not self.tier.save(entry, size, read, is_intact, stamp):
            return False
        self._nodes[entry.key] = (node, count)
        return True

    def _read_all(self) -> None:
        """Add the files of earlier processes to the tree; remove files whose prefix has no files."""
        at: dict[bytes, Node] = {}
        width = self._tree.width
        for entry in self.tier.scan():
            parent = at.get(entry.parent)
            begins = parent.stop if parent is not None else 0
            if begins != entry.start or not entry.tokens:
                self.tier.remove(entry)
                continue
            node = self._tree.child(parent or entry.parent, entry.tokens[:width])
            for start in range(width, len(entry.tokens), width):
                node = self._tree.child(node, entry.tokens[start : start + width])
            count = entry.start + len(entry.tokens) - node.start
            if node.digest_after(count) != entry.digest:
                self.tier.remove(entry)
                self._tree.update(node)
                continue
            if entry.kind == "block":
                node.saved_rows = max(node.saved_rows, count)
            else:
                node.saved_snapshots.add(count)
            self._tree.update(node)
            self._nodes[entry.key] = (node, count)
            if count == width:
                at[entry.digest] = node

    def _entry(self, kind: Kind, node: Node, count: int) -> Entry:
        """Return the entry of a node's first ``count`` tokens.

        With paged state, the entry follows the entry of the parent's block. Without paged state, a snapshot's entry
        has all tokens of the sequence.
        """
        assert node.parent is not None
        tokens, start, parent = node.tokens[:count], node.start, node.parent
        if not self._access.token_bytes:
            while parent.parent is not None:
                tokens, start, parent = parent.tokens + tokens, parent.start, parent.parent
        return Entry(kind, node.digest_after(count), parent.digest, start, tokens)
