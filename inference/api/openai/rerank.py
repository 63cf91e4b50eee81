"""Serve POST /v1/rerank: order documents by their similarity to a query.

Shape: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (re-rank API, after Jina and Cohere).
Checkpoints' classification heads aren't loaded, so a score is the cosine of two embeddings, -1 to 1.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import numpy as np
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.api.base import ApiView, json_body, json_response, read_further
from inference.api.event_stream import output_format
from inference.api.schemas import GENERATION_ERRORS, RerankedSerializer, documented
from inference.dialects.fields import (
    MAX_INPUTS,
    KeepAliveField,
    RequestField,
    StrictCharField,
    optional_boolean,
    optional_integer,
)
from inference.dialects.openai.embeddings import PoolingFieldMixin, embedding_plan
from inference.dialects.openai.outputs.embedding import EmbeddingFormat
from inference.dialects.openai.sampling_fields import PriorityFieldMixin
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import BlazrError, shown
from inference.serving.generation import Generation, generation_start
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan

MAX_DOCUMENTS = MAX_INPUTS - 1
_NUMBER = re.compile(r"\binput (\d+)")


@extend_schema_field(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_DOCUMENTS,
        "items": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}}]},
    }
)
class DocumentsField(RequestField):
    """Texts, or objects with a text; the value is a list of texts."""

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError(f"must be a list with at least one document, got {shown(data)}.")
        if len(data) > MAX_DOCUMENTS:
            raise serializers.ValidationError(
                f"has {len(data)} documents, at most {MAX_DOCUMENTS} go into one request."
            )
        texts = [item["text"] if isinstance(item, dict) and set(item) == {"text"} else item for item in data]
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise serializers.ValidationError(
                    f'has a document {number} that is neither a text nor {{"text": …}}: {shown(data[number])}.'
                )
        return texts


class RerankRequestSerializer(PriorityFieldMixin, PoolingFieldMixin, StrictSerializer):
    """Body of POST /v1/rerank."""

    takes_hints = True

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    query = StrictCharField(help_text="What is looked for.")
    documents = DocumentsField(help_text="Texts, or objects with a text.")
    top_n = optional_integer(1, MAX_DOCUMENTS, "Only the best. Default: all.")
    return_documents = optional_boolean("Default: true.")
    keep_alive = KeepAliveField()

    def plan(self, values: dict[str, Any]) -> GenerationPlan:
        """Return the plan of the embeddings: the query's first, then the documents'."""
        inputs: list[PromptMessage] = [{"text": text} for text in (values["query"], *values["documents"])]
        return embedding_plan(
            values["model"],
            inputs,
            {"pooling": values.get("pooling"), "dimensions": None, "normalize": True, "encoding_format": "float"},
            priority=values.get("priority", 0),
            keep_alive_s=values.get("keep_alive"),
        )


class RerankView(ApiView):
    """POST /v1/rerank."""

    admits_itself = True

    @documented(
        operation_id="rerank",
        summary="Order documents by their likeness to a query",
        description=(
            "relevance_score is the cosine of the embeddings of query and document; how much it means depends on "
            "what the model was trained for. Parameters that aren't listed are refused."
        ),
        request=RerankRequestSerializer,
        responses={200: RerankedSerializer},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Score all documents, best first."""
        serializer = RerankRequestSerializer.shared()
        values = await json_body(request, serializer.parse)
        try:
            plan = await read_further(request, lambda: serializer.plan(values))
            generation = await generation_start(plan=plan, principal=self.principal)
            await generation.wait()
        except BlazrError as error:
            raise _in_own_words(error) from None
        body = await asyncio.to_thread(_response, generation, values)
        return json_response(body, headers={"x-request-id": generation.request_id})


def _response(generation: Generation, values: dict[str, Any]) -> dict[str, Any]:
    vectors = cast("EmbeddingFormat", output_format(generation)).vectors()
    scores: list[float] = np.clip(vectors[1:] @ vectors[0], -1.0, 1.0).tolist()
    # Equal scores keep the order of the documents.
    best = sorted(range(len(scores)), key=lambda number: -scores[number])[: values.get("top_n")]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": scores[number]} for number in best]
    if values.get("return_documents", True):
        for result in results:
            result["document"] = {"text": values["documents"][result["index"]]}
    return {
        "id": generation.request_id,
        "model": generation.served.name,
        "results": results,
        "usage": {"prompt_tokens": generation.builder.prompt_tokens, "total_tokens": generation.builder.prompt_tokens},
    }


def _in_own_words(error: BlazrError) -> BlazrError:
    """Return an error of the embedding request with the names query and documents in place of input."""
    found = _NUMBER.search(error.message)
    if error.param != "input" or found is None:
        return error
    number = int(found[1])
    name = "query" if number == 0 else f"documents[{number - 1}]"
    message = _NUMBER.sub(name, error.message)
    return type(error)(message, param=name.partition("[")[0], retry_after_s=error.retry_after_s)
