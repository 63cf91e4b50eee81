"""The worker's own pool, whose engines log requests that begin, and that end early with free slots and blocks.

A line of the log is a JSON list: the prompt's first tokens, the stage, the number of generated tokens, and the time
(``time.monotonic``). The stage of a request that begins is ``begun``; that of one that ended early is queued, prefill
or decode, and its state is free by then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.engine.running_request import Request
from inference.worker.pool import EnginePool
from inference.worker.runtime import WorkerRuntime
from tests.faults.load import LOG

MARK_TOKENS = 4

_add = Engine.add_request
_abort = Engine.abort_request


def _stage(request: Request) -> str:
    if not request.is_running:
        return "queued"
    return "prefill" if request.num_computed_tokens < request.num_prompt_tokens else "decode"


def _log(prompt: Sequence[int], stage: str, num_generated: int) -> None:
    line = json.dumps([list(prompt[:MARK_TOKENS]), stage, num_generated, time.monotonic()])
    with (Path(os.environ["BLAZR_DATA_DIR"]) / LOG).open("a") as log:
        log.write(line + "\n")


def _logged_add(engine: Engine, source: EngineRequest) -> None:
    _add(engine, source)
    _log(source.prompt_token_ids, "begun", 0)


def _logged_abort(engine: Engine, request_id: str) -> bool:
    request = engine._requests.get(request_id)
    if request is None:
        return _abort(engine, request_id)
    stage, num_generated = _stage(request), len(request.token_ids) - request.num_prompt_tokens
    found = _abort(engine, request_id)
    _log(request.source.prompt_token_ids, stage, num_generated)
    return found


class LoggingPool(EnginePool):
    """``EnginePool`` whose engines write the log."""

    def make_runtime(self) -> WorkerRuntime:
        """Start the log in this process, and return the parts of this worker."""
        Engine.add_request = _logged_add  # type: ignore[method-assign]
        Engine.abort_request = _logged_abort  # type: ignore[method-assign]
        return super().make_runtime()
