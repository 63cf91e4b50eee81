"""BlockPool: free, used and idle blocks."""

from __future__ import annotations

import pytest

from inference.engine.state.block_pool import BlockPool


def test_scratch_is_never_handed_out_and_all_others_are():
    pool = BlockPool(5)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 4)
    with pytest.raises(AssertionError, match="1 blocks requested, 0 are free"):
        pool.allocate(1)


def test_a_shared_block_is_free_after_its_last_user():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.share(block)
    assert pool.num_freed_by([[block]]) == 0
    assert pool.num_freed_by([[block], [block]]) == 1
    assert pool.num_freed_by([[block], [block]], besides=[block]) == 0
    pool.free([block])
    assert pool.is_used(block) and pool.num_free == 1
    pool.free([block])
    assert not pool.is_used(block) and pool.num_free == 2
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([block])


def test_a_remembered_block_is_idle_until_it_is_evicted():
    pool, evicted = BlockPool(4), []
    pool.on_evict = evicted.append
    blocks = pool.allocate(3)
    for block in blocks[:2]:
        pool.remember(block)
    pool.free(blocks)
    assert (pool.num_idle, pool.num_free, pool.num_used) == (2, 3, 0)
    # Free blocks first, then the idle one that was freed first.
    assert pool.allocate(2) == [blocks[2], blocks[0]]
    assert evicted == [blocks[0]] and pool.num_evicted == 1
    pool.share(blocks[1])
    assert pool.num_idle == 0 and pool.is_used(blocks[1])


def test_a_forgotten_block_is_free():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.remember(block)
    pool.free([block])
    pool.forget(block)
    assert (pool.num_idle, pool.num_free) == (0, 1)
    assert pool.allocate(1) == [block] and pool.num_evicted == 0


def test_kept_blocks_are_evicted_last_and_until_their_time():
    pool, evicted = BlockPool(5), []
    pool.on_evict = evicted.append
    blocks = pool.allocate(4)
    for block in blocks:
        pool.remember(block)
    pool.keep(blocks[:2], until=10.0)
    pool.free(blocks)
    pool.keep(blocks[2:3], until=20.0)  # while it is idle
    assert (pool.num_idle, pool.num_free, pool.num_kept, pool.num_not_kept(blocks)) == (4, 4, 3, 1)
    pool.free(pool.allocate(1))
    assert evicted == [blocks[3]] and pool.num_kept == 3
    pool.keep(blocks[:1], until=5.0)
    pool.end_keeping(10.0)
    assert pool.num_kept == 1 and pool.num_idle == 3, "a shorter time doesn't shorten a longer one, and 10 is over"
    pool.allocate(4)
    assert evicted == [blocks[3], blocks[0], blocks[1], blocks[2]] and pool.num_kept == 0


def test_a_kept_block_can_be_shared_and_forgotten():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.remember(block)
    pool.keep([block], until=10.0)
    pool.free([block])
    pool.share(block)
    assert pool.is_used(block) and pool.num_idle == 0
    pool.free([block])
    pool.forget(block)
    assert (pool.num_idle, pool.num_free, pool.num_kept) == (0, 2, 0)
