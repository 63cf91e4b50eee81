"""What the prefix cache counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class MissReason(StrEnum):
    """Why less of a prompt was found than could have been."""

    COLD = "cold"
    """Nothing that begins like it has been here (under its salt)."""
    DIVERGED = "diverged"
    """All that it has in common with an earlier one was found."""
    EVICTED = "evicted"
    """More was here, but made room for something else."""
    NO_SNAPSHOT = "no_snapshot"
    """More is known, but recurrent state was kept at other positions only."""
    NEEDS_ALL_ROWS = "needs_all_rows"
    """Log-probabilities of the prompt's tokens were asked for."""
    DISABLED = "disabled"
    """The cache is off."""


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Totals since the engine was made, and gauges.

    Attributes:
        num_hits: Requests of whose prompt something was found.
        num_misses: Requests of whose prompt nothing was found.
        num_cached_tokens: Prompt tokens that were found.
        misses: Requests by the reason why nothing was found.
        shortfalls: Requests by the reason why a part was found, but not all.
        num_idle_blocks: Blocks that nobody uses, kept for later.
        num_evicted_blocks, num_evicted_snapshots: That made room.
        num_snapshots, num_snapshot_slots: Snapshots in slots, and how many there is room for.
        host_bytes: Snapshots in host memory.
        disk_bytes: Files of all models in the cache directory; 0 without one.
        num_disk_tokens: Prompt tokens whose state came from disk.
        num_disk_writes, num_disk_skipped, num_disk_corrupt, num_disk_removed: Files.
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
    """Counts requests by what was found of their prompts."""

    def __init__(self) -> None:
        self.num_hits = 0
        self.num_cached_tokens = 0
        self.misses: Counter[str] = Counter()
        self.shortfalls: Counter[str] = Counter()

    def record(self, num_cached_tokens: int, reason: MissReason | None) -> None:
        """One request."""
        self.num_cached_tokens += num_cached_tokens
        self.num_hits += num_cached_tokens > 0
        if reason is not None:
            (self.shortfalls if num_cached_tokens else self.misses)[reason.value] += 1
