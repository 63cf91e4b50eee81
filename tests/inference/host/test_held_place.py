"""A place is held for a block, given back however it ends, and refused where none is left."""

from __future__ import annotations

import threading

import pytest

from inference.errors import QueueFull
from inference.host.held_place import held_place


@pytest.mark.parametrize("places", [threading.Lock(), threading.BoundedSemaphore(1)], ids=["a lock", "a semaphore"])
@pytest.mark.parametrize("wait_s", [0.0, 0.01])
def test_a_place_is_held_and_given_back(places, wait_s):
    refusal = QueueFull("others are first", retry_after_s=1)
    for _ in range(2):
        with pytest.raises(KeyError), held_place(places, refusal, wait_s=wait_s):
            with pytest.raises(QueueFull, match="others are first"), held_place(places, refusal, wait_s=wait_s):
                raise AssertionError("two have one place")
            raise KeyError


def test_a_place_that_becomes_free_is_taken():
    places = threading.BoundedSemaphore(1)
    places.acquire()
    threading.Timer(0.05, places.release).start()
    with held_place(places, QueueFull("late"), wait_s=60):
        assert not places.acquire(blocking=False)
