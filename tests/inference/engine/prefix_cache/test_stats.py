"""Requests are counted once: as a miss or as a shortfall, by reason."""

from __future__ import annotations

from inference.engine.prefix_cache.stats import MissReason, PrefixCacheStats, PrefixCounts


def test_a_reason_is_a_miss_or_a_shortfall():
    counts = PrefixCounts()
    counts.record(0, MissReason.COLD)
    counts.record(0, MissReason.COLD)
    counts.record(16, MissReason.DIVERGED)
    counts.record(31, None)
    assert (counts.num_hits, counts.num_cached_tokens) == (2, 47)
    assert dict(counts.misses) == {"cold": 2} and dict(counts.shortfalls) == {"diverged": 1}


def test_a_cache_that_did_nothing_has_zeros():
    stats = PrefixCacheStats()
    assert not stats.misses and not stats.shortfalls and stats.num_hits == stats.disk_bytes == 0
