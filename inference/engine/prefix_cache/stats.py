"""Define the counters of the prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class MissReason(StrEnum):
    """Why not all of a prompt was found in the cache."""

    COLD = "cold"
    """No earlier prompt with the same salt begins with the same token."""
    DIVERGED = "diverged"
    """The whole common prefix with an earlier prompt was found."""
    EVICTED = "evicted"
    """A longer prefix was cached, but was evicted."""
    NO_SNAPSHOT = "no_snapshot"
    """A longer prefix is known, but has no snapshot of recurrent state at its end."""
    NEEDS_ALL_ROWS = "needs_all_rows"
    """The request needs the hidden rows of all prompt tokens."""
    DISABLED = "disabled"
    """The prefix cache is off."""


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Counters since the engine's creation, and gauges.

    Attributes:
        num_hits: Requests with at least one cached prompt token.
        num_misses: Requests without a cached prompt token.
        num_cached_tokens: Prompt tokens found in the cache.
        misses: Requests without a cached token, by reason.
        shortfalls: Requests with a part of their prompt in the cache, by the reason why it wasn't all.
        num_idle_blocks: Cached blocks that no request uses.
        num_evicted_blocks, num_evicted_snapshots: Blocks and snapshots that were evicted.
        num_snapshots, num_snapshot_slots: Snapshots in slots, and slots for snapshots.
        host_bytes: Bytes of snapshots in host memory.
        disk_bytes: Bytes of all models' files in the cache directory; 0 without one.
        num_disk_tokens: Prompt tokens whose state was read from disk.
        num_disk_writes, num_disk_skipped, num_disk_corrupt, num_disk_removed: Files by what happened to them.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_cached_tokens: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    shortfalls: Mapping[str, int] = field(default_factory=dict)
    num_idle_blocks: int = 0
    num_evicted_blocks: int = 0
    num_snapshots: int = 0
    num_snapshot_slots: int = 0
    num_evicted_snapshots: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    num_disk_tokens: int = 0
    num_disk_writes: int = 0
    num_disk_skipped: int = 0
    num_disk_corrupt: int = 0
    num_disk_removed: int = 0


class PrefixCounts:
    """Count requests by their cached tokens."""

    def __init__(self) -> None:
        self.num_hits = 0
        self.num_cached_tokens = 0
        self.misses: Counter[str] = Counter()
        self.shortfalls: Counter[str] = Counter()

    def record(self, num_cached_tokens: int, reason: MissReason | None) -> None:
        """Count one request."""
        self.num_cached_tokens += num_cached_tokens
        self.num_hits += num_cached_tokens > 0
        if reason is not None:
            (self.shortfalls if num_cached_tokens else self.misses)[reason.value] += 1
