"""How much of a sequence has state, and why not more."""

from __future__ import annotations

import pytest

from inference.engine.prefix_cache.lookup import PrefixLookup
from inference.engine.prefix_cache.stats import MissReason
from inference.engine.prefix_cache.tree import PrefixTree, Snapshot, root_digest

SPACE = root_digest("")
TOKENS = list(range(10))


class Known:
    """A tree of width 4 that knows ten tokens: two full nodes and a tail of two."""

    def __init__(self, *, paged, fixed):
        self.tree = PrefixTree(4, max_dead=100)
        self.nodes = [self.tree.child(SPACE, (0, 1, 2, 3))]
        self.nodes.append(self.tree.child(self.nodes[0], (4, 5, 6, 7)))
        self.nodes.append(self.tree.child(self.nodes[1], (8, 9)))
        self.lookup = PrefixLookup(self.tree, paged=paged, fixed=fixed)

    def give_blocks(self, *rows):
        for number, (node, count) in enumerate(zip(self.nodes, rows, strict=False)):
            node.block, node.rows = number + 1, count

    def give_snapshot(self, number, offset):
        node = self.nodes[number]
        node.snapshots[offset] = Snapshot(node, offset, 1, 1, 1.0)

    def find(self, tokens, *, fetched=None, with_disk=False, can_read=True):
        return self.lookup.find(SPACE, tokens, fetched=fetched, with_disk=with_disk, can_read=can_read)


def test_paged_state_is_found_by_token():
    known = Known(paged=True, fixed=False)
    known.give_blocks(4, 4, 2)
    whole = known.find([*TOKENS, 99])
    assert (whole.num_tokens, whole.num_known, whole.reason) == (10, 10, None)
    assert whole.source is known.nodes[2] and list(whole.nodes) == known.nodes[:2]
    shorter = known.find(TOKENS[:7])
    assert (shorter.num_tokens, shorter.source, shorter.reason) == (6, known.nodes[1], None)
    other = known.find([0, 1, 2, 3, 4, 99, 98])
    assert (other.num_tokens, other.source, other.reason) == (5, known.nodes[1], MissReason.DIVERGED)
    assert known.find([0, 1, 2, 3, 99, 98]).source is None, "it resumes between two blocks"


def test_a_block_that_is_gone_ends_what_can_be_resumed():
    known = Known(paged=True, fixed=False)
    known.give_blocks(4, 0, 2)
    match = known.find([*TOKENS, 99])
    assert (match.num_tokens, match.num_known, match.reason) == (4, 10, MissReason.EVICTED)


def test_a_file_counts_once_it_is_read_or_supposed():
    known = Known(paged=True, fixed=False)
    known.give_blocks(4)
    known.nodes[1].saved_rows = 4
    assert known.find([*TOKENS, 99]).num_tokens == 4
    assert known.find([*TOKENS, 99], with_disk=True).num_tokens == 8
    fetched = {("block", known.nodes[1].digest_after(4)): None}
    assert known.find([*TOKENS, 99], fetched=fetched).num_tokens == 8


def test_recurrent_state_is_where_the_latest_snapshot_is():
    known = Known(paged=False, fixed=True)
    known.give_snapshot(0, 2)
    known.give_snapshot(1, 1)
    known.give_snapshot(2, 2)
    assert known.find([*TOKENS, 99]).state == (known.nodes[2], 2)
    assert known.find(TOKENS).state == (known.nodes[1], 1), "the last token is left to compute"
    match = known.find([0, 1, 2, 3, 99, 98])
    assert (match.num_tokens, match.reason) == (2, MissReason.NO_SNAPSHOT)
    known.nodes[0].evicted_snapshots.add(4)
    assert known.find([0, 1, 2, 3, 99, 98]).reason is MissReason.EVICTED


def test_a_hybrid_needs_both():
    known = Known(paged=True, fixed=True)
    known.give_blocks(4, 4, 0)
    known.give_snapshot(0, 3)
    known.give_snapshot(2, 1)
    match = known.find([*TOKENS, 99])
    assert (match.num_tokens, match.state, match.source) == (3, (known.nodes[0], 3), known.nodes[0])


@pytest.mark.parametrize("can_read", [True, False])
def test_what_nobody_has_sent_is_cold(can_read):
    known = Known(paged=True, fixed=False)
    match = known.find([7, 7, 7], can_read=can_read)
    assert (match.num_tokens, match.num_known) == (0, 0)
    assert match.reason is (MissReason.COLD if can_read else MissReason.NEEDS_ALL_ROWS)
    assert known.find([7], can_read=can_read).reason is None
