"""The worker's own pool, with requests that kill the process, hang the engine, hold the GIL or end the thread."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import chain
from typing import Any

from inference.engine.engine import Engine
from inference.worker import step_watch
from inference.worker.pool import EnginePool
from inference.worker.runtime import WorkerRuntime

POISON = [11, 13, 11, 13]
"""The first tokens of a prompt that kills its worker with the first step in which the prompt is computed."""
HANG = [17, 19, 17, 19]
"""Likewise: a step takes a minute, once: when the request has three tokens, and in no later attempt."""
SILENT = [23, 29, 23, 29]
"""Likewise: the engine's thread ends by ``sys.exit``, which Python doesn't report, once like ``HANG``."""
GIL_HOLDER = [31, 37, 31, 37]
"""Likewise: the step holds the GIL for ever, once."""
STUCK_AFTER_S = 3.0
"""Seconds after which the worker ends then; 30 usually."""
DRAIN_GRACE_S = 0.3
"""Seconds from SIGTERM to the return of unfinished requests."""

_forward = Engine._step


def _step(engine: Engine) -> Any:
    for request in [*engine._scheduler.running, *chain(*engine._scheduler.waiting.values())]:
        if request.token_ids[: len(POISON)] == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        if request.sampling.num_output_tokens == 3 and not request.source.prior_output_token_ids:
            if request.token_ids[: len(HANG)] == HANG:
                time.sleep(60)
            if request.token_ids[: len(SILENT)] == SILENT:
                sys.exit()
            if request.token_ids[: len(GIL_HOLDER)] == GIL_HOLDER:
                _hold_gil()
    return _forward(engine)


def _hold_gil() -> None:
    step_watch.STUCK_AFTER_S = STUCK_AFTER_S
    time.sleep(2 * step_watch.TICK_S)  # the timer starts with the next tick
    ctypes.PyDLL(None).sleep(600)


class FaultyPool(EnginePool):
    """``EnginePool`` whose engines have the faults."""

    def make_runtime(self) -> WorkerRuntime:
        """Arm the faults in this process, and return the parts of this worker, with a shorter grace time."""
        Engine._step = _step  # type: ignore[method-assign]
        runtime = super().make_runtime()
        runtime.config = replace(runtime.config, drain_grace_s=DRAIN_GRACE_S)
        return runtime
