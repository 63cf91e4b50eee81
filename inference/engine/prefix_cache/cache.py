"""PrefixCache: find the state of a sequence's prefix, and keep the state of computed tokens.

This module runs in the engine's thread; only ``disk`` has threads of its own. For a new sequence the caller calls
``find`` (and before it ``fetch``, if the disk may have more state). ``begin`` puts the found state into the sequence's
blocks and slot. ``advance`` after each step and ``end`` add the computed tokens to the tree.

Paged state is shared block by block, a partial block is copied, and so reuse is exact to the token. Recurrent state
exists only at snapshots: a sequence with both kinds of state resumes at the last snapshot with all blocks before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

from inference.engine.config import EngineConfig
from inference.engine.prefix_cache.cached_sequence import CachedSequence
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.lookup import Fetched, Match, PrefixLookup
from inference.engine.prefix_cache.namespace import Namespaces
from inference.engine.prefix_cache.policy import SNAPSHOT_INTERVAL, aligned, is_snapshot_due, snapshot_positions
from inference.engine.prefix_cache.saving import DiskIndex
from inference.engine.prefix_cache.snapshots import SnapshotStore
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.stats import MissReason, PrefixCacheStats, PrefixCounts
from inference.engine.prefix_cache.tree import Node, PrefixTree, Snapshot
from inference.engine.request import CacheBreakpoint
from inference.engine.saved_state import SavedState
from inference.engine.state.kv_cache_manager import KVCacheManager
from inference.modelling.spec import ModelSpec

MAX_DEAD_NODES = 1 << 14
"""Nodes without state that are kept to recognise evicted prefixes; about 1.5 KB each."""
MIN_DISK_GAIN = 32
"""Minimum tokens on disk beyond those in memory; computing fewer is faster than reading them."""


class PrefixCache:
    """The prefix cache of one engine.

    Args:
        spec: Specification of the model.
        config: Sizes; the ``num_snapshot_slots`` slots follow the running sequences' slots.
        kv: Block tables and block pool.
        access: Copies states.
        disk: Files that keep states beyond the process; closed with the cache.
    """

    def __init__(
        self, spec: ModelSpec, config: EngineConfig, kv: KVCacheManager, access: StateAccess, disk: DiskTier | None
    ) -> None:
        self._paged = access.token_bytes > 0
        self._fixed = access.slot_bytes > 0
        self.is_enabled = config.prefix_cache and (
            config.num_snapshot_slots > 0 if self._fixed else self._paged and config.num_blocks > 1
        )
        self._width = config.block_size if self._paged else SNAPSHOT_INTERVAL
        self._kv = kv
        self._access = access
        self._tree = PrefixTree(self._width, MAX_DEAD_NODES)
        self._lookup = PrefixLookup(self._tree, paged=self._paged, fixed=self._fixed)
        self._namespaces = Namespaces(spec)
        self._snapshots = SnapshotStore(
            self._tree,
            access,
            first_slot=config.num_state_slots,
            num_slots=config.num_snapshot_slots if self._fixed else 0,
            host_bytes=config.snapshot_host_bytes,
        )
        self._owners: dict[int, Node] = {}
        kv.pool.on_evict = self._evict
        self._counts = PrefixCounts()
        self._num_disk_tokens = 0
        self._disk = DiskIndex(disk, self._tree, access) if disk is not None and self.is_enabled else None

    # --- before a sequence runs ----------------------------------------------------------------

    def digest(self, salt: str, num_prompt_tokens: int, state: SavedState | None = None, adapter: str = "") -> bytes:
        """Return the digest of a request's namespace; a saved state and an adapter (its digest) have their own."""
        origin = "" if state is None else state.digest.hex()
        return self._namespaces.digest(salt, num_prompt_tokens, origin=origin, adapter=adapter)

    def find(
        self,
        digest: bytes,
        tokens: Sequence[int],
        *,
        fetched: Fetched | None = None,
        with_disk: bool = False,
        can_read: bool = True,
    ) -> Match:
        """Return the cached prefix of a sequence, without its last token, which is always computed.

        Args:
            fetched: State that was read from disk for the sequence.
            with_disk: Treat all state on disk as if it had been read.
            can_read: False: the request needs the hidden rows of all tokens, so that no state can be reused.
        """
        if not self.is_enabled:
            return Match(reason=MissReason.DISABLED)
        return self._lookup.find(digest, tokens, fetched=fetched, with_disk=with_disk, can_read=can_read)

    def fetch(self, digest: bytes, tokens: Sequence[int]) -> Future[Fetched] | None:
        """Start to read the part of a prefix that is only on disk; None: fewer than ``MIN_DISK_GAIN`` tokens."""
        if self._disk is None:
            return None
        here, there = self.find(digest, tokens), self.find(digest, tokens, with_disk=True)
        if there.num_tokens - here.num_tokens < MIN_DISK_GAIN:
            return None
        count, rest = divmod(there.num_tokens, self._width)
        blocks = [(node, self._width) for node in there.nodes[:count]] if self._paged else []
        if there.source is not None:
            blocks.append((there.source, rest))
        return self._disk.load([node for node, rows in blocks if node.rows < rows], there.state)

    def num_shared_in_use(self, match: Match) -> int:
        """Return the number of a match's blocks that running sequences use; sharing them takes no free block."""
        return sum(self._kv.pool.is_used(block) for block in self.blocks_of(match))

    def blocks_of(self, match: Match) -> list[int]:
        """Return the blocks of a match that can be shared."""
        full = match.nodes[: match.num_tokens // self._width] if self._paged else ()
        return [node.block for node in full if node.rows == self._width]

    # --- while it runs -------------------------------------------------------------------------

    def begin(
        self,
        match: Match,
        digest: bytes,
        index: int,
        slot: int,
        tokens: Sequence[int],
        fetched: Fetched | None,
        *,
        breakpoints: Sequence[CacheBreakpoint] = (),
        is_kept: bool = True,
    ) -> CachedSequence:
        """Put the found state into a sequence's blocks and slot; the caller allocates the other blocks.

        Args:
            index: Row of the block tables, without blocks; the pool must have enough free blocks.
            tokens: All known tokens of the sequence.
            breakpoints: Positions at which the state is to be kept, ascending.
            is_kept: Whether the tokens that it computes are added to the tree.
        """
        width = self._width
        self._kv.pool.end_keeping(time.monotonic())
        full, rest = divmod(match.num_tokens, width)
        sequence = CachedSequence(
            digest, start=match.num_tokens, junction=match.num_known, last_snapshot=match.num_tokens,
            is_kept=is_kept and self.is_enabled, num_known=match.num_tokens,
        )  # fmt: skip
        if match.state is not None:
            self._load_state(*match.state, slot, fetched)
            sequence.marked[match.state[0]] = None  # it can have the snapshot of a breakpoint, too
        if self._paged and match.num_tokens:
            self._share(match, index, full, rest, fetched)
        for node in match.nodes[:full]:
            self._tree.acquire(node)
            sequence.path.append(node)
        if self._fixed and sequence.is_kept:
            stops = snapshot_positions(
                match.num_tokens, len(tokens), match.num_known, num_slots=self._snapshots.num_slots
            )
            positions = {item.position for item in breakpoints if match.num_tokens < item.position < len(tokens)}
            sequence.stops = sorted(positions.union(stops))
        sequence.breakpoints = list(breakpoints) if sequence.is_kept else []
        return sequence

    def keep_restored(self, sequence: CachedSequence, index: int, slot: int, state: SavedState) -> None:
        """Keep a saved state that was written into the blocks and the slot of a sequence that begins with its tokens.

        Args:
            sequence: Begun without any cached token.
            index: Row of the block tables, with blocks for all of the state's tokens.
        """
        count = len(state.token_ids)
        if not sequence.is_kept:
            return
        sequence.num_known = count
        self._extend(sequence, index, state.token_ids, count)
        if self._fixed:
            node, offset = self._mark(sequence, index, state.token_ids, count)
            self._snapshots.add(node, offset, slot, give=False)
            sequence.last_snapshot = count

    def record_found(self, num_cached_tokens: int, reason: MissReason | None) -> None:
        """Count a request's cached tokens; call once per request."""
        self._counts.record(num_cached_tokens, reason)

    def chunk_stop(self, sequence: CachedSequence, start: int, stop: int, length: int) -> int:
        """Return the end of a prefill chunk, cut at the next position of a snapshot.

        Args:
            start, stop: Positions of the tokens that fit into the step.
            length: Number of known tokens.
        """
        if not self._fixed or not sequence.is_kept:
            return stop
        stops = sequence.stops
        while stops and stops[0] <= start:
            del stops[0]
        if stops and stops[0] <= stop:
            return stops[0]
        return stop if stop == length else aligned(start, stop)

    def advance(
        self, sequence: CachedSequence, index: int, slot: int, tokens: Sequence[int], num_computed: int
    ) -> None:
        """Add the tokens that a step has computed to the tree, as soon as they are known to be usable."""
        if not sequence.is_kept:
            return
        is_due = self._fixed and (
            (sequence.stops and sequence.stops[0] == num_computed)
            or is_snapshot_due(num_computed, sequence.last_snapshot)
        )
        if is_due:
            sequence.last_snapshot = num_computed
        if sequence.has_unknown:
            if is_due:
                self._take(sequence, slot, num_computed)
            return
        sequence.num_known = num_computed
        for position, taken in sequence.taken.items():
            node, offset = self._mark(sequence, index, tokens, position)
            self._snapshots.place(node, offset, taken, is_junction=position == sequence.junction)
        sequence.taken.clear()
        if num_computed >= (len(sequence.path) + 1) * self._width:
            self._extend(sequence, index, tokens, num_computed)
        if is_due:
            node, offset = self._mark(sequence, index, tokens, num_computed)
            self._snapshots.add(node, offset, slot, give=False, is_junction=num_computed == sequence.junction)
        while sequence.breakpoints and sequence.breakpoints[0].position <= num_computed:
            self._keep(sequence, sequence.breakpoints.pop(0))

    def _take(self, sequence: CachedSequence, slot: int, position: int) -> None:
        """Copy a state that may be unusable, at the limit over another copy of the sequence."""
        taken = self._snapshots.take(slot)
        if not taken and (replaced := sequence.replaced_by(position)):
            taken = sequence.taken.pop(replaced)
            self._snapshots.take_again(taken, slot)
        if taken:
            sequence.taken[position] = taken

    def _mark(self, sequence: CachedSequence, index: int, tokens: Sequence[int], position: int) -> tuple[Node, int]:
        """``_place`` for a snapshot of the sequence."""
        node, offset = self._place(sequence, index, tokens, position)
        sequence.marked[node] = None
        return node, offset

    def save(self, sequence: CachedSequence) -> None:
        """Write the state that a sequence has computed to disk, if there is a disk tier."""
        if self._disk is not None:
            tail = {} if sequence.tail is None else {sequence.tail: None}
            self._disk.save(list(dict.fromkeys(sequence.path) | sequence.marked | tail))

    def end(
        self,
        sequence: CachedSequence,
        index: int,
        slot: int,
        tokens: Sequence[int],
        num_computed: int,
        *,
        is_state_valid: bool,
    ) -> int:
        """Add all computed tokens of a sequence to the tree, and end the sequence.

        Args:
            num_computed: Number of tokens with valid paged state.
            is_state_valid: Whether the slot holds the recurrent state after exactly these tokens.

        Returns:
            The slot to free: another slot if the cache keeps the sequence's slot as a snapshot.
        """
        if sequence.has_unknown:
            num_computed, is_state_valid = sequence.num_known, False
        if sequence.is_kept and num_computed:
            self._extend(sequence, index, tokens, num_computed)
            if self._paged or (self._fixed and is_state_valid):
                node, offset = self._place(sequence, index, tokens, num_computed)
                if self._fixed and is_state_valid:
                    slot = self._snapshots.add(node, offset, slot, give=True)
            if num_computed >= len(tokens) - 1:
                self.save(sequence)
        self._leave(sequence)
        return slot

    def forget(self, sequence: CachedSequence, index: int) -> None:
        """Remove all state that a sequence has computed, because it may be wrong, and end the sequence."""
        own = set(self._kv.blocks_of(index)) if self._paged else set()
        for node in [*sequence.path, *([] if sequence.tail is None else [sequence.tail])]:
            if node.stop <= sequence.start:
                continue
            for snapshot in [s for s in node.snapshots.values() if s.position > sequence.start]:
                self._snapshots.drop(snapshot)
            if node.block in own:
                self._kv.pool.forget(node.block)
                self._detach(node)
        self._leave(sequence)

    def poll(self) -> None:
        """Process the results of the disk's threads."""
        if self._disk is not None:
            self._disk.poll()

    def flush(self) -> None:
        """Wait until the disk tier has no pending work."""
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Write all pending files and close the disk tier."""
        if self._disk is not None:
            self._disk.close()

    def stats(self) -> PrefixCacheStats:
        """Return the current counters and gauges."""
        counts, disk = self._counts, None if self._disk is None else self._disk.tier
        return PrefixCacheStats(
            num_hits=counts.num_hits,
            num_misses=sum(counts.misses.values()),
            num_cached_tokens=counts.num_cached_tokens,
            misses=dict(counts.misses),
            shortfalls=dict(counts.shortfalls),
            num_idle_blocks=self._kv.pool.num_idle,
            num_evicted_blocks=self._kv.pool.num_evicted,
            num_snapshots=self._snapshots.num_used,
            num_snapshot_slots=self._snapshots.num_slots,
            num_evicted_snapshots=self._snapshots.num_evicted,
            host_bytes=self._snapshots.host_bytes,
            disk_bytes=0 if disk is None else disk.total_bytes,
            num_disk_tokens=self._num_disk_tokens,
            num_disk_writes=0 if disk is None else disk.num_written,
            num_disk_skipped=0 if disk is None else disk.num_skipped,
            num_disk_corrupt=0 if disk is None else disk.num_corrupt,
            num_disk_removed=0 if disk is None else disk.num_removed,
        )

    # --- breakpoints ---------------------------------------------------------------------------

    def _keep(self, sequence: CachedSequence, item: CacheBreakpoint) -> None:
        """Keep the state of a computed prefix: its whole blocks, or all of it with the snapshot at its end.

        Nothing is kept if there is no snapshot at the position, or if more than half of the blocks or of the slots for
        snapshots would be kept.
        """
        pool, until = self._kv.pool, time.monotonic() + item.seconds
        count, rest = divmod(item.position, self._width)
        nodes, snapshot = sequence.path[:count], None
        if self._fixed:
            snapshot = self._snapshot_at(sequence, count, rest)
            if snapshot is None:
                return
            nodes = nodes if rest == 0 else [*nodes, snapshot.node]
            rest = 0
        blocks = [node.block for node in nodes if node.block]
        if not nodes or pool.num_kept + pool.num_not_kept(blocks) > pool.num_blocks // 2:
            return
        if snapshot is not None and not self._snapshots.keep(snapshot, until):
            return
        pool.keep(blocks, until)
        sequence.kept.append(CacheBreakpoint(item.position - rest, item.seconds))

    def _snapshot_at(self, sequence: CachedSequence, count: int, rest: int) -> Snapshot | None:
        """Return the snapshot ``rest`` tokens behind the sequence's first ``count`` nodes."""
        if rest == 0:
            return sequence.path[count - 1].snapshots.get(self._width) if count else None
        for node in (*sequence.path[count : count + 1], sequence.tail, *sequence.marked):
            if node is not None and node.start == count * self._width and rest in node.snapshots:
                return node.snapshots[rest]
        return None

    # --- reuse ---------------------------------------------------------------------------------

    def _load_state(self, node: Node, offset: int, slot: int, fetched: Fetched | None) -> None:
        snapshot = node.snapshots.get(offset)
        if snapshot is not None:
            self._snapshots.load(snapshot, slot)
            return
        assert fetched is not None
        self._access.write_slot(slot, fetched["state", node.digest_after(offset)])
        self._snapshots.add(node, offset, slot, give=False)
        if not self._paged:
            self._num_disk_tokens += node.start + offset

    def _share(self, match: Match, index: int, full: int, rest: int, fetched: Fetched | None) -> None:
        """Append a match's blocks to a request: share blocks in memory, copy the last one and those from disk."""
        pool, nodes, width = self._kv.pool, match.nodes[:full], self._width
        for node in nodes:
            if node.rows == width:
                pool.share(node.block)
        last = self._copy_source(match.source, rest, fetched) if match.source is not None else 0
        for node in nodes:
            if node.rows == width:
                self._kv.append(index, [node.block])
                continue
            assert fetched is not None
            block = pool.allocate(1)[0]
            self._access.write_block(block, fetched["block", node.digest_after(width)], width)
            self._num_disk_tokens += width
            self._kv.append(index, [block])
            self._attach(node, block, width)
        if last:
            self._kv.append(index, [last])

    def _copy_source(self, source: Node, rest: int, fetched: Fetched | None) -> int:
        """Return a new block with a copy of the state of a node's first ``rest`` tokens."""
        pool = self._kv.pool
        if source.rows < rest:
            assert fetched is not None
            block = pool.allocate(1)[0]
            self._access.write_block(block, fetched["block", source.digest_after(source.saved_rows)], rest)
            self._num_disk_tokens += rest
            return block
        original = source.block
        pool.share(original)  # so that the pool doesn't allocate it before the copy
        if pool.num_free == 0:
            pool.free([original])
            return pool.allocate(1)[0]  # the last free block is the original itself
        block = pool.allocate(1)[0]
        self._access.copy_block(original, block, rest)
        pool.free([original])
        return block

    # --- additions to the tree -----------------------------------------------------------------

    def _extend(self, sequence: CachedSequence, index: int, tokens: Sequence[int], num_computed: int) -> None:
        """Add a full node for each full computed block."""
        path, width = sequence.path, self._width
        while (len(path) + 1) * width <= num_computed:
            parent = path[-1] if path else sequence.digest
            start = len(path) * width
            node = self._tree.child(parent, tuple(tokens[start : start + width]))
            self._tree.acquire(node)
            if self._paged:
                self._attach(node, int(self._kv.block_tables[index, len(path)]), width)
            path.append(node)
            self._set_tail(sequence, None)

    def _place(self, sequence: CachedSequence, index: int, tokens: Sequence[int], position: int) -> tuple[Node, int]:
        """Add the tokens before a position to the tree; return the position's node and offset."""
        self._extend(sequence, index, tokens, position)
        path, width = sequence.path, self._width
        number, offset = divmod(position, width)
        if offset == 0:
            return path[number - 1], width
        parent = path[-1] if path else sequence.digest
        node = self._tree.child(parent, tuple(tokens[number * width : position]))
        self._set_tail(sequence, node)
        if self._paged:
            self._attach(node, int(self._kv.block_tables[index, number]), offset)
        return node, offset

    def _set_tail(self, sequence: CachedSequence, node: Node | None) -> None:
        before = sequence.tail
        sequence.tail = node
        if node is not None:
            self._tree.acquire(node)
        if before is not None:
            self._tree.release(before)

    def _leave(self, sequence: CachedSequence) -> None:
        for taken in sequence.taken.values():
            self._snapshots.give_back(taken)
        sequence.taken.clear()
        self._set_tail(sequence, None)
        for node in reversed(sequence.path):
            self._tree.release(node)
        sequence.path.clear()

    def _attach(self, node: Node, block: int, rows: int) -> None:
        """Record a block that holds the state of the node's first ``rows`` tokens, unless the node has such a block."""
        if node.rows >= rows:
            return
        before = self._owners.get(block)
        if before is not None and before is not node:
            self._detach(before)
        if node.block and node.block != block:
            self._kv.pool.forget(node.block)
            self._detach(node)
        node.block, node.rows = block, rows
        self._owners[block] = node
        self._kv.pool.remember(block)

    def _detach(self, node: Node) -> None:
        del self._owners[node.block]
        node.block = node.rows = 0
        node.epoch += 1
        self._tree.update(node)

    def _evict(self, block: int) -> None:
        """Detach a block that the pool reuses; drop its node's snapshots, which need the block."""
        node = self._owners[block]
        for snapshot in list(node.snapshots.values()):
            self._snapshots.drop(snapshot)
        self._detach(node)
