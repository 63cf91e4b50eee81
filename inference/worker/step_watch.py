"""Detect an engine step that doesn't end, or a process without a running thread, and have the process replaced."""

from __future__ import annotations

import faulthandler
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

logger = logging.getLogger(__name__)

HUNG_AFTER_S = 14.0
"""Seconds that a step may take beyond its allowance. After half of them the worker isn't ready any more."""
TICK_S = 0.5
MAX_SLOWDOWN = 8
"""A token takes at most so many times as long as one of the slowest step so far: contexts grow, machines get busy."""
FIRST_ALLOWANCE_S = 300.0
"""Allowance of an engine's first step, which may compile kernels, and limit of the others'."""

STUCK_AFTER_S = 30.0
"""Seconds without a tick after which the process ends, because a thread holds the GIL. No measured load held it so
long; other workers have the requests of this one by then."""
_STDERR = 2


class Steps(Protocol):
    """The part of ``inference.engine.loop.EngineLoop`` that is watched."""

    @property
    def step_number(self) -> int | None:
        """Number of the step that runs now; None: no step runs."""
        ...

    @property
    def step_tokens(self) -> int:
        """Upper limit of the tokens in the step that runs now."""
        ...

    @property
    def longest_token_s(self) -> float:
        """Seconds per token of the slowest step that has ended, usually a small one; 0: none has."""
        ...


class StepWatch:
    """Watch the steps of all engines, in a thread of its own.

    The thread counts its own ticks instead of the clock's seconds: while the whole process is stopped, or its threads
    get no processor time, no step becomes older.

    Args:
        loops: Returns the loops of all engines.
        on_hung: Called once, when a step has taken ``HUNG_AFTER_S`` longer than its allowance.
        ends_stuck_process: Whether the process ends itself with exit code 1, after it has printed what each thread
            does, when the watch's thread didn't run for ``STUCK_AFTER_S``. A thread without the GIL, started by
            ``faulthandler``, does that.
    """

    def __init__(
        self,
        loops: Callable[[], Iterable[Steps]],
        on_hung: Callable[[], object],
        *,
        ends_stuck_process: bool = False,
    ) -> None:
        self._loops = loops
        self._on_hung = on_hung
        self._ends_stuck_process = ends_stuck_process
        self._ages: dict[Steps, tuple[int, float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step-watch", daemon=True)
        self.is_late = False

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            if self._ends_stuck_process:
                faulthandler.dump_traceback_later(STUCK_AFTER_S, exit=True, file=_STDERR)  # replaces the earlier one
            late_s = self.tick()
            if late_s > HUNG_AFTER_S:
                logger.critical("a step of an engine has taken %.0f s longer than its allowance", late_s)
                self._on_hung()
                return  # with the timer, because the end of the process may hang too
        if self._ends_stuck_process:
            faulthandler.cancel_dump_traceback_later()

    def tick(self) -> float:
        """Look at all engines once; return how long the latest step is over its allowance, in seconds."""
        ages: dict[Steps, tuple[int, float]] = {}
        late_s = 0.0
        for loop in self._loops():
            number = loop.step_number
            if number is None:
                continue
            before = self._ages.get(loop)
            age_s = before[1] + TICK_S if before is not None and before[0] == number else 0.0
            ages[loop] = (number, age_s)
            late_s = max(late_s, age_s - allowance_s(loop.step_tokens, loop.longest_token_s))
        self._ages = ages
        self.is_late = late_s > HUNG_AFTER_S / 2
        return late_s


def allowance_s(tokens: int, longest_token_s: float) -> float:
    """Return the seconds that a step may take.

    Args:
        tokens: Tokens of the step.
        longest_token_s: Seconds per token of the slowest step so far; 0: there was none.
    """
    if not longest_token_s:
        return FIRST_ALLOWANCE_S
    return min(MAX_SLOWDOWN * tokens * longest_token_s, FIRST_ALLOWANCE_S)
