"""The worker's own pool, whose engines kill the process when they compute a request that begins with ``POISON``."""

from __future__ import annotations

import os
import signal
from typing import Any

from inference.engine.engine import Engine
from inference.worker.pool import EnginePool

POISON = [11, 13, 11, 13]
"""The first tokens of a prompt that kills its worker with the first step in which the prompt is computed."""

_forward = Engine._step


def _step(engine: Engine) -> Any:
    for request in [*engine._scheduler.running, *engine._scheduler.waiting]:
        if request.token_ids[: len(POISON)] == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
    return _forward(engine)


class FaultyPool(EnginePool):
    """``EnginePool``; importing this module arms the fault."""


Engine._step = _step  # type: ignore[method-assign]
