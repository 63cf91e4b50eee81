"""Check grammars in the web process, before a request is queued or its model is loaded.

The worker checks grammars again, because it also gets requests from jobs. Both sides cache the results.
"""

from __future__ import annotations

from inference.host.fair_threads import FairThreads
from inference.text.grammars.checker import GrammarChecker, GrammarLimits
from inference.values.grammar import Grammar
from inference.values.principal import principal_current

MAX_WAITING = 64
MAX_WAITING_EACH = 16
"""Most grammars that wait: of all callers, and of one."""
WAIT_S = 10.0


class GrammarChecks:
    """Run a ``GrammarChecker`` in a thread, which waits for the checker's child process; callers take turns."""

    def __init__(self, limits: GrammarLimits) -> None:
        self._checker = GrammarChecker(limits)
        self._threads = FairThreads(
            1, "grammars", max_waiting=MAX_WAITING, max_waiting_each=MAX_WAITING_EACH, timeout_s=WAIT_S
        )

    async def check(self, grammar: Grammar) -> None:
        """Raise an error unless the grammar can be compiled.

        Raises:
            InvalidSamplingParams: The grammar is invalid, not supported, or over a limit.
            QueueFull: Too many grammars wait, or this one has waited for too long.
        """
        self._checker.check_size(grammar)  # first: the digest of a long text would hold the event loop
        if self._checker.knows(grammar):
            self._checker.check(grammar)
        else:
            await self._threads.run(principal_current().tenant, lambda: self._checker.check(grammar))


_checks: GrammarChecks | None = None


def grammar_checks() -> GrammarChecks:
    """Return the ``GrammarChecks`` of this process."""
    global _checks
    if _checks is None:
        _checks = GrammarChecks(GrammarLimits())
    return _checks
