"""Query the workers from the web process: which requests run, and whether a model would fit."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from inference.errors import BlazrError, Unavailable
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client
from inference.transport.control import send_control
from inference.transport.worker_states import worker_states

ANSWER_WITHIN_S = 3.0
WAIT_S = 0.5
_FITTING = ("resident", "fits", "fits_after_eviction")


async def ask_workers(kind: str, **values: Any) -> list[dict[str, Any]]:
    """The answers of all workers that are alive, as far as they come in time.

    Args:
        kind: ``requests`` or ``fit``.
        values: Further members of the question.

    Raises:
        Unavailable: Redis can't be reached, or no worker has answered.
    """
    workers = await worker_states()
    if not workers:
        raise Unavailable("No worker is running; start one, or wait for it.", retry_after_s=5)
    question_id = secrets.token_hex(12)
    await send_control("ask", json.dumps({"id": question_id, "kind": kind, **values}))
    answers: list[dict[str, Any]] = []
    deadline = time.monotonic() + ANSWER_WITHIN_S
    async with redis_client() as client:
        while len(answers) < len(workers) and time.monotonic() < deadline:
            found = await client.blpop([redis_keys.answers(question_id)], timeout=WAIT_S)
            if found is not None:
                answers.append(json.loads(found[1]))
    if not answers:
        raise Unavailable("The workers did not answer; they may be busy starting. Try again.", retry_after_s=2)
    return answers


async def running_requests() -> list[dict[str, Any]]:
    """Requests of all callers, as the workers have them; one entry per prompt."""
    answers = await ask_workers("requests")
    return [{**item, "worker_id": answer["worker_id"]} for answer in answers for item in answer.get("requests", ())]


async def model_fit(checkpoint_id: str) -> list[dict[str, Any]]:
    """Per worker whether the model would fit.

    Raises:
        BlazrError: Why no worker can load it.
    """
    answers = await ask_workers("fit", checkpoint_id=checkpoint_id)
    found = [{"worker_id": answer["worker_id"], **answer["fit"]} for answer in answers if "fit" in answer]
    if not found:
        raise BlazrError.from_dict(answers[0]["error"])
    return found


def fits_somewhere(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of ``model_fit``'s workers could hold the model, other models evicted if need be."""
    return any(item["verdict"] in _FITTING for item in found)
