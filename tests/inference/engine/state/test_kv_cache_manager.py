"""KVCacheManager: block tables of requests."""

from __future__ import annotations

from inference.engine.state.kv_cache_manager import KVCacheManager


def test_a_request_gets_blocks_as_it_grows_and_gives_them_back():
    manager = KVCacheManager(num_blocks=6, block_size=4, max_num_seqs=2, max_blocks_per_sequence=5)
    assert manager.extend(0, 5) and manager.extend(0, 8)
    assert manager.num_blocks_of == [2, 0]
    assert len(manager.blocks_of(0)) == 2
    assert manager.block_tables[0, :2].tolist() == manager.blocks_of(0)
    assert manager.extend(0, 1) and manager.num_blocks_of == [2, 0]
    assert manager.extend(1, 12)
    before = manager.block_tables.copy()
    assert not manager.extend(0, 9), "no block is free"
    assert (manager.block_tables == before).all()
    manager.release(1)
    assert manager.num_blocks_of == [2, 0] and not manager.block_tables[1].any()
    assert manager.extend(0, 20)
    assert len(set(manager.blocks_of(0))) == 5


def test_shared_blocks_stand_behind_those_that_are_there():
    manager = KVCacheManager(num_blocks=6, block_size=4, max_num_seqs=2, max_blocks_per_sequence=5)
    assert manager.extend(0, 4)
    (block,) = manager.blocks_of(0)
    manager.pool.share(block)
    manager.append(1, [block])
    assert manager.extend(1, 5)
    assert manager.blocks_of(1)[0] == block and manager.num_blocks_of == [1, 2]
    manager.release(0)
    assert manager.pool.is_used(block)
    manager.release(1)
    assert manager.pool.num_used == 0
