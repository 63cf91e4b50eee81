"""Coroutines that run in tasks of their own, and what each event loop has one of.

Standard library and ``inference.errors`` only.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from inference.errors import BlazrError

T = TypeVar("T")

_background: set[asyncio.Task[Any]] = set()


def run_in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run ``work`` to its end even when the caller is cancelled (the loop keeps weak references only)."""
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task


async def run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all together; the first error ends the others.

    Raises:
        BlazrError: That error.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except* BlazrError as errors:
        raise _first_leaf(errors) from None


def _first_leaf(group: BaseExceptionGroup[BlazrError]) -> BlazrError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, BlazrError):
        raise error
    return error


class PerLoop(Generic[T]):
    """One object for each event loop, made at its first use; it goes with the loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def __call__(self) -> T:
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make()
        return found
