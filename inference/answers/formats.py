"""Which shape the answer of a request has."""

from __future__ import annotations

from inference.answers.base import AnswerFormat
from inference.answers.builder import AnswerBuilder
from inference.answers.chat import ChatFormat
from inference.answers.completion import CompletionFormat
from inference.answers.embedding import EmbeddingFormat
from inference.generation_plan import GenerationPlan


def answer_format(
    plan: GenerationPlan, builder: AnswerBuilder, *, request_id: str, created: int, model: str
) -> AnswerFormat:
    """The format of the plan's endpoint."""
    if plan.endpoint == "embedding":
        return EmbeddingFormat(plan, builder, request_id, model)
    kind = ChatFormat if plan.endpoint == "chat" else CompletionFormat
    return kind(plan, builder, request_id, created, model)
