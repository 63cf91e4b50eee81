"""The worker's own pool, whose engines log each request that ends early, when its slot and blocks are free."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from inference.engine.engine import Engine
from inference.engine.running_request import Request, RequestStatus
from inference.worker.pool import EnginePool

LOG = "aborts.log"
"""Name of the log in the data directory. A line is a JSON list: the prompt's first tokens, the stage, the number of
generated tokens, and the time (``time.monotonic``) at which the request's state was free."""
MARK_TOKENS = 4

_abort = Engine.abort_request


def _stage(request: Request) -> str:
    if request.status == RequestStatus.WAITING:
        return "queued"
    return "prefill" if request.num_computed_tokens < request.num_prompt_tokens else "decode"


def _logged_abort(engine: Engine, request_id: str) -> bool:
    request = engine._requests.get(request_id)
    if request is None:
        return _abort(engine, request_id)
    mark, stage = list(request.source.prompt_token_ids[:MARK_TOKENS]), _stage(request)
    num_generated = len(request.token_ids) - request.num_prompt_tokens
    found = _abort(engine, request_id)
    with (Path(os.environ["BLAZR_DATA_DIR"]) / LOG).open("a") as log:
        log.write(json.dumps([mark, stage, num_generated, time.monotonic()]) + "\n")
    return found


class LoggingPool(EnginePool):
    """``EnginePool``; importing this module starts the log."""


Engine.abort_request = _logged_abort  # type: ignore[method-assign]
