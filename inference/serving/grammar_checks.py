"""Check grammars in the web process, before a request is queued or its model is loaded.

The worker checks grammars again, because it also gets requests from jobs. Both sides cache the results.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from inference.errors import QueueFull
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.values.grammar import Grammar

MAX_WAITING = 64


class GrammarChecks:
    """Run a ``GrammarChecker`` in a thread, which waits for the checker's child process."""

    def __init__(self, limits: GrammarLimits) -> None:
        self._checker = GrammarChecker(limits)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._num_waiting = 0

    async def check(self, grammar: Grammar) -> None:
        """Raise an error unless the grammar can be compiled.

        Raises:
            InvalidSamplingParams: The grammar is invalid, not supported, or over a limit.
            QueueFull: Too many grammars wait.
        """
        if self._checker.knows(grammar):
            self._checker.check(grammar)
            return
        if self._num_waiting >= MAX_WAITING:
            raise QueueFull("Too many grammars wait to be compiled; try again in a moment.", retry_after_s=1)
        self._num_waiting += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._checker.check, grammar)
        finally:
            self._num_waiting -= 1


_checks: GrammarChecks | None = None


def grammar_checks() -> GrammarChecks:
    """Return the ``GrammarChecks`` of this process."""
    global _checks
    if _checks is None:
        _checks = GrammarChecks(GrammarLimits())
    return _checks
