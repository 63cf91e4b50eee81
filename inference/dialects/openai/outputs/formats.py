"""Choose the response format of a request."""

from __future__ import annotations

from inference.dialects.openai.outputs.base import OutputFormatter
from inference.dialects.openai.outputs.chat import ChatFormat
from inference.dialects.openai.outputs.completion import CompletionFormat
from inference.dialects.openai.outputs.embedding import EmbeddingFormat
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan


def output_formatter(
    plan: GenerationPlan, builder: OutputBuilder, *, request_id: str, created: int, model: str
) -> OutputFormatter:
    """Return the response format of the plan's endpoint."""
    if plan.endpoint == "embedding":
        return EmbeddingFormat(plan, builder, request_id, model)
    kind = ChatFormat if plan.endpoint == "chat" else CompletionFormat
    return kind(plan, builder, request_id, created, model)
