"""Hold one of a few places of this process for as long as something takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_place(
    places: threading.Lock | threading.Semaphore, refusal: Exception, *, wait_s: float = 0.0
) -> Iterator[None]:
    """Hold a place for the time of the block, and raise ``refusal`` if none is free within ``wait_s`` seconds."""
    if not places.acquire(timeout=wait_s):
        raise refusal
    try:
        yield
    finally:
        places.release()
