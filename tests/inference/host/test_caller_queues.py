"""Callers take turns, whatever the numbers of their items."""

from __future__ import annotations

import pytest

from inference.host.caller_queues import CallerQueues


def taken(turns: CallerQueues[str]) -> list[str]:
    """All items in the order in which they are taken."""
    found = []
    while len(turns):
        caller, item = next(turns.heads())
        turns.remove(caller, item)
        found.append(item)
    return found


def test_a_caller_with_many_items_waits_for_the_others():
    turns: CallerQueues[str] = CallerQueues()
    for caller, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        turns.add(caller, item)
    assert (len(turns), turns.count("a"), turns.count("d")) == (6, 3, 0)
    assert list(turns.heads()) == [("a", "a1"), ("b", "b1"), ("c", "c1")]
    assert taken(turns) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert list(turns.heads()) == []


def test_an_item_that_was_given_up_leaves_no_trace():
    turns: CallerQueues[str] = CallerQueues()
    turns.add("a", "a1")
    turns.add("a", "a2")
    turns.add("b", "b1")
    turns.remove("a", "a2")
    turns.remove("b", "b1")
    assert (len(turns), turns.count("b")) == (1, 0)
    with pytest.raises(KeyError):
        turns.remove("b", "b1")
    with pytest.raises(ValueError, match="not in deque"):
        turns.remove("a", "a2")
    assert taken(turns) == ["a1"]


def test_all_items_are_named_in_the_order_in_which_they_will_be_taken():
    turns: CallerQueues[str] = CallerQueues()
    for caller, item in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("b", "b3"), ("c", "c1")):
        turns.add(caller, item)
    named = list(turns.in_turns())
    assert named == taken(turns) == ["a1", "b1", "c1", "a2", "b2", "b3"]
    assert list(turns.in_turns()) == []
