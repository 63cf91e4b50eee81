"""Read batch lines for /v1/responses, and build their responses after the generation."""

from __future__ import annotations

import time
from typing import Any

from inference.dialects.chat_bridge import pieces
from inference.dialects.openai.outputs.formats import output_formatter
from inference.dialects.responses.events import ResponseEvents
from inference.dialects.responses.serializers import ResponseRequest, ResponseRequestSerializer
from inference.errors import UnsupportedFeature
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan

_WHY_NOT = {
    "stream": "a line of a batch has no stream",
    "background": "a batch runs in the background as a whole",
    "store": "the response of a line is in the output file and is not stored",
    "previous_response_id": "a line of a batch stands alone; put the earlier items into input",
}


def response_request(body: object) -> ResponseRequest:
    """Validate the body of a line.

    Raises:
        UnsupportedFeature: A member is supported only outside of batches.
        InvalidRequest: With the field in ``param``.
    """
    request = ResponseRequestSerializer.shared().read(body)
    for name, why in _WHY_NOT.items():
        if request.values.get(name):
            raise UnsupportedFeature(f"{name}: {why}; leave it out.", param=name)
    if request.values.get("truncation", "disabled") != "disabled":
        raise UnsupportedFeature("truncation: a line of a batch is not cut; shorten its input.", param="truncation")
    return ResponseRequest({**request.values, "store": False}, request.items, request.chat)


def whole_response(
    request: ResponseRequest, plan: GenerationPlan, builder: OutputBuilder, *, response_id: str
) -> dict[str, Any]:
    """Build the response from the builder's output.

    Args:
        builder: Has all events of the only choice, text included.
    """
    now = int(time.time())
    skeleton = request.skeleton(plan, response_id=response_id, created=now, model=plan.model)
    made = ResponseEvents(skeleton, returns_reasoning=request.returns_reasoning)
    made.started()
    choice = builder.prompts[0].choices[0]
    event: GenerationEvent = {
        "request_id": response_id,
        "attempt": 0,
        "index": 0,
        "type": "delta",
        "choice": 0,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    chat = output_formatter(plan, builder, request_id=response_id, created=now, model=plan.model)
    for chunk in chat.chunks(0, event):
        for piece in pieces(chunk):
            made.take(piece)
    made.finished(usage=builder.usage(), now=now)
    return made.response
