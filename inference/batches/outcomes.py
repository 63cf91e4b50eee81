"""What a line that has ended becomes: from the events of its generation to a line of the output or the error file.

The same for the server's lines and those of ``blazr batch run``. Knows no rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from inference.answers.builder import AnswerBuilder
from inference.answers.formats import answer_format
from inference.batches.requests import answer_line, refusal_line
from inference.errors import BlazrError, GenerationFailed
from inference.generation_plan import Endpoint, GenerationPlan

logger = logging.getLogger(__name__)

_ID_PREFIXES: Mapping[Endpoint, str] = {"chat": "chatcmpl-", "completion": "cmpl-", "embedding": "embd-"}


def ended_line(
    plan: GenerationPlan, builder: AnswerBuilder, *, line_id: str, custom_id: str, request_id: str
) -> tuple[str, bool]:
    """The line of a generation that ended well.

    Args:
        plan: Resolved.
        builder: Has all of its events.
        line_id: The line's name in the files; ids of answers end like it.
        request_id: Names the attempt.

    Returns:
        The line, and whether it is one of the error file: the answer can't be put together.
    """
    try:
        answer = answer_format(
            plan,
            builder,
            request_id=_ID_PREFIXES[plan.endpoint] + line_id.removeprefix("batch_req_"),
            created=int(time.time()),
            model=plan.model,
        )
        body = answer.whole()
        return answer_line(line_id=line_id, custom_id=custom_id, request_id=request_id, body=body), False
    except BlazrError as error:
        problem = error
    except Exception:
        logger.exception("the answer of line %s could not be put together", line_id)
        problem = GenerationFailed("The answer could not be put together because of an internal error.")
    return refusal_line(line_id=line_id, custom_id=custom_id, request_id=request_id, error=problem), True
