"""How long an engine's steps take, and how much of that its network does."""

from __future__ import annotations

import time
from typing import Any

from inference.llm.llm import LLM


class StepClock:
    """Times the steps of an engine from now on.

    Args:
        llm: Loaded; its ``step`` is replaced by one that is timed.

    Attributes:
        network_s: What of it layers and head take, replayed or not.
    """

    def __init__(self, llm: LLM) -> None:
        self.steps_s = self.network_s = 0.0
        self._depth = 0
        runner, step = llm._running_engine()._runner, llm.step
        network, programs = runner._network, runner._programs
        network.forward = self._timed(network.forward)
        network.compute_logits = self._timed(network.compute_logits)
        network.argmax_logits = self._timed(network.argmax_logits)
        if programs is not None:
            programs.run = self._timed(programs.run)  # type: ignore[method-assign]

        def timed_step() -> Any:
            started = time.perf_counter()
            events = step()
            self.steps_s += time.perf_counter() - started
            return events

        llm.step = timed_step  # type: ignore[method-assign]

    def reset(self) -> None:
        self.steps_s = self.network_s = 0.0

    def _timed(self, call: Any) -> Any:
        def timed_call(*args: Any, **kwargs: Any) -> Any:
            # A step that is being recorded calls the network within the program's run: it counts once.
            self._depth += 1
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.network_s += time.perf_counter() - started

        return timed_call
