"""Which nodes have files: entered at the start, forgotten when a file is gone."""

from __future__ import annotations

import pytest

from inference.engine.config import EngineConfig
from inference.engine.model_runner import allocate_states
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.saving import DiskIndex
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.tree import PrefixTree, root_digest
from tests.inference.engine.fakes import make_spec

SPACE = root_digest("")
WIDTH = 4


@pytest.fixture
def index(tmp_path):
    opened = []

    def open_index(max_dead=0):
        spec = make_spec("paged")
        config = EngineConfig(64, num_blocks=9, num_state_slots=1, block_size=WIDTH, max_num_seqs=2)
        access = StateAccess(spec, allocate_states(spec, config), WIDTH)
        tier = DiskTier(tmp_path, "model", 1 << 20)
        opened.append(tier)
        found = DiskIndex(tier, PrefixTree(WIDTH, max_dead), access)
        return found, found._tree

    yield open_index
    for tier in opened:
        tier.close()


def save_chain(index, tree, *pieces):
    """Nodes with blocks 1, 2, …, written to disk; the blocks are taken away again."""
    nodes, parent = [], SPACE
    for number, tokens in enumerate(pieces):
        node = tree.child(parent, tokens)
        node.block, node.rows = number + 1, len(tokens)
        tree.update(node)
        nodes.append(node)
        parent = node
    index.save(nodes)
    index.flush()
    for node in nodes:
        node.block = node.rows = 0
        tree.update(node)
    return nodes


def test_nodes_with_files_stay_and_are_there_after_a_restart(index):
    first, tree = index()
    save_chain(first, tree, (1, 2, 3, 4), (5, 6, 7, 8), (9,))
    assert tree.num_nodes == 3 and tree.num_dead == 0
    _, again = index()
    walk = again.walk(SPACE, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert [node.saved_rows for node in walk.nodes] == [4, 4] and walk.tails[0][0].saved_rows == 1
    assert again.num_nodes == 3 and again.num_dead == 0


def test_a_file_that_is_gone_leaves_no_node(index, tmp_path):
    first, tree = index()
    nodes = save_chain(first, tree, (1, 2, 3, 4), (5, 6, 7, 8))
    for path in list(tmp_path.rglob("*.block")):
        path.unlink()
    assert not first.load(nodes, None).result()
    first.poll()
    assert tree.num_nodes == len(tree._roots) == 0


def test_a_file_without_its_beginning_is_removed_and_leaves_no_node(index, tmp_path):
    first, tree = index()
    nodes = save_chain(first, tree, (1, 2, 3, 4), (5, 6, 7, 8))
    (path,) = [path for path in tmp_path.rglob("*.block") if path.name.startswith(nodes[0].digest.hex())]
    path.unlink()
    second, again = index()
    second.flush()
    assert again.num_nodes == len(again._roots) == 0 and not list(tmp_path.rglob("*.block"))
