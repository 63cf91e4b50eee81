"""Turn the events of an ended generation into a line of the output or the error file.

The server and ``blazr batch run`` both use this module. It uses no database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from inference.batches.line_requests import LineRequest, refusal_line, respond_to_line
from inference.dialects.openai.outputs.formats import output_formatter
from inference.dialects.responses.lines import whole_response
from inference.errors import BlazrError, GenerationFailed
from inference.values.output_builder import OutputBuilder
from inference.values.plan import Endpoint

logger = logging.getLogger(__name__)

_ID_PREFIXES: Mapping[Endpoint, str] = {"chat": "chatcmpl-", "completion": "cmpl-", "embedding": "embd-"}


def ended_line(
    request: LineRequest, builder: OutputBuilder, *, line_id: str, custom_id: str, request_id: str
) -> tuple[str, bool]:
    """Return the line of a generation that succeeded.

    Args:
        builder: Has all events of the generation.
        line_id: The line's id in the files; the response's id has the same ending.

    Returns:
        The line, and whether the line belongs to the error file because the output could not be built.
    """
    try:
        body = _body(request, builder, line_id.removeprefix("batch_req_"))
        return respond_to_line(line_id=line_id, custom_id=custom_id, request_id=request_id, body=body), False
    except BlazrError as error:
        problem = error
    except Exception:
        logger.exception("the output of line %s could not be put together", line_id)
        problem = GenerationFailed("The output could not be put together because of an internal error.")
    return refusal_line(line_id=line_id, custom_id=custom_id, request_id=request_id, error=problem), True


def _body(request: LineRequest, builder: OutputBuilder, name: str) -> dict[str, Any]:
    plan = request.plan
    if request.response is not None:
        return whole_response(request.response, plan, builder, response_id=f"resp_{name}")
    shape = output_formatter(
        plan, builder, request_id=_ID_PREFIXES[plan.endpoint] + name, created=int(time.time()), model=plan.model
    )
    return shape.whole()
