"""The tree against a plain model of it: sequences as tuples, and what is held behind each."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.engine.prefix_cache.tree import PrefixTree, Snapshot, root_digest

NAMESPACES = [root_digest("a"), root_digest("b")]
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def make_path(tree, digest, tokens):
    """The full nodes of a sequence, acquired as a running sequence does it."""
    path, parent = [], digest
    for start in range(0, len(tokens) - tree.width + 1, tree.width):
        node = tree.child(parent, tuple(tokens[start : start + tree.width]))
        tree.acquire(node)
        path.append(node)
        parent = node
    return path


def prefix_of(node):
    """(namespace, all tokens up to the node's last)."""
    tokens = ()
    while node.parent is not None:
        tokens, node = node.tokens + tokens, node.parent
    return node.digest_, tokens


class TreeMachine(RuleBasedStateMachine):
    """Full nodes are named by namespace and tokens; the model keeps users and state by that name."""

    @initialize(width=st.integers(1, 3), max_dead=st.sampled_from([0, 1, 3, 1000]))
    def start(self, width, max_dead):
        self.tree = PrefixTree(width, max_dead)
        self.width, self.max_dead = width, max_dead
        self.running = []
        self.users = {}
        self.blocks = {}
        self.snapshots = {}
        self.saved = {}
        self.serial = itertools.count(1)

    # --- the model ---------------------------------------------------------------------------

    def holders(self):
        held = (self.users, self.blocks, self.snapshots, self.saved)
        return {name for each in held for name, value in each.items() if value}

    def beginnings(self, names):
        width = self.width
        return {(space, tokens[:stop]) for space, tokens in names for stop in range(width, len(tokens) + 1, width)}

    def live(self):
        return self.beginnings(self.holders())

    def nodes_by_name(self):
        return {prefix_of(node): node for node in self.tree.nodes()}

    # --- what happens ------------------------------------------------------------------------

    @rule(digest=st.sampled_from(NAMESPACES), tokens=SEQUENCES)
    def begin(self, digest, tokens):
        path = make_path(self.tree, digest, tokens)
        self.running.append(path)
        for node in path:
            name = prefix_of(node)
            self.users[name] = self.users.get(name, 0) + 1

    @rule(data=st.data(), keeps=st.sampled_from(["nothing", "block", "snapshot", "file"]))
    def end(self, data, keeps):
        if not self.running:
            return
        path = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        for node in reversed(path):
            name = prefix_of(node)
            if keeps == "block" and not node.block:
                node.block = self.blocks[name] = next(self.serial)
            elif keeps == "snapshot":
                node.snapshots[self.width] = self.snapshots[name] = Snapshot(node, self.width, 1, 1, 1.0)
            elif keeps == "file":
                node.saved_rows = self.saved[name] = self.width
            self.users[name] -= 1
            self.tree.release(node)

    @rule(data=st.data(), what=st.sampled_from(["blocks", "snapshots", "saved"]))
    def lose(self, data, what):
        held = sorted(name for name, value in getattr(self, what).items() if value)
        if not held:
            return
        name = data.draw(st.sampled_from(held))
        node = self.nodes_by_name()[name]
        del getattr(self, what)[name]
        if what == "blocks":
            node.block = 0
        elif what == "saved":
            node.saved_rows = 0
        else:
            del node.snapshots[self.width]
            node.evicted_snapshots.add(self.width)
        self.tree.update(node)

    # --- what holds --------------------------------------------------------------------------

    @invariant()
    def counts_are_true(self):
        nodes = self.nodes_by_name()
        live = self.live()
        assert live <= nodes.keys(), "a live node is missing"
        assert len(nodes) == self.tree.num_nodes == len(list(self.tree.nodes()))
        assert self.tree.num_dead == len(nodes) - len(live) <= self.max_dead
        assert {name for name, node in nodes.items() if node.is_live} == live
        assert all(node.counts_as_live == node.is_live for node in nodes.values())
        assert len(self.tree._roots) == len({space for space, _ in nodes}), "an empty namespace is kept"

    @invariant()
    def children_are_behind_their_parents(self):
        for (space, tokens), node in self.nodes_by_name().items():
            assert node.start == len(tokens) - len(node.tokens)
            assert node.parent.full[node.tokens] is node and node in node.parent.siblings[node.tokens[0]]
            assert node.num_live_children == sum(c.is_live for c in node.full.values())
            assert tokens == node.tokens or (space, tokens[: -len(node.tokens)]) in self.nodes_by_name()

    @rule(digest=st.sampled_from(NAMESPACES), tokens=SEQUENCES)
    def walk(self, digest, tokens):
        known = [name for name in self.nodes_by_name() if name[0] == digest]
        agreed = max((common(name[1], tuple(tokens)) for name in known), default=0)
        walk = self.tree.walk(digest, tokens)
        assert walk.num_known == agreed
        assert [prefix_of(node)[1] for node in walk.nodes] == [
            tuple(tokens[: stop + self.width]) for stop in range(0, agreed // self.width * self.width, self.width)
        ]


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def common(left, right):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@pytest.mark.parametrize("width", [16, 64])
def test_new_sequences_without_end_leave_a_bounded_tree(width):
    """Removing a branch used to recurse once for each dead one."""
    tree, source = PrefixTree(width, max_dead=300), random.Random(0)
    for _ in range(3000):
        path = make_path(tree, NAMESPACES[0], [source.randrange(512) for _ in range(4 * width)])
        for node in reversed(path):
            tree.release(node)
        assert tree.num_nodes == tree.num_dead <= 300


def test_one_long_dead_sequence_is_removed_from_its_end():
    tree, tokens = PrefixTree(1, max_dead=10), list(range(5000))
    path = make_path(tree, NAMESPACES[0], tokens)
    for node in reversed(path):
        tree.release(node)
    assert [node.tokens for node in tree.walk(NAMESPACES[0], tokens).nodes] == [(n,) for n in range(10)]
    assert tree.num_nodes == 10


def test_the_one_that_died_first_is_removed_first():
    tree = PrefixTree(2, max_dead=4)
    for first in range(4):
        for node in reversed(make_path(tree, NAMESPACES[0], [first, 0, first, 1])):
            tree.release(node)
    assert [tree.walk(NAMESPACES[0], [first, 0, first, 1]).num_known for first in range(4)] == [0, 0, 4, 4]


def test_namespaces_without_nodes_are_removed():
    tree = PrefixTree(4, max_dead=2)
    for number in range(50):
        for node in reversed(make_path(tree, root_digest(str(number)), [1] * 4)):
            tree.release(node)
    assert len(tree._roots) == tree.num_nodes == 2


def test_a_tail_grows_until_it_is_full():
    tree = PrefixTree(4, max_dead=10)
    tail = tree.child(NAMESPACES[0], (1, 2))
    assert tree.child(NAMESPACES[0], (1,)) is tail and tail.tokens == (1, 2)
    assert tree.child(NAMESPACES[0], (1, 2, 3, 4)) is tail
    before = tail.digest_after(4)
    child = tree.child(tail, (5,))
    assert tail.digest == before and child.start == 4 and tree.num_nodes == tree.num_dead == 2
    walk = tree.walk(NAMESPACES[0], [1, 2, 3, 4, 5, 6])
    assert walk.nodes == [tail] and walk.tails == [(child, 1)] and walk.num_known == 5
