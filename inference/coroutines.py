"""Coroutines that run in tasks of their own. Standard library and ``inference.errors`` only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from inference.errors import BlazrError

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
