"""Serve POST /v1/embeddings.

Shape: https://platform.openai.com/docs/api-reference/embeddings/create; ``pooling`` and ``normalize`` are vLLM's
additions.
"""

from __future__ import annotations

import asyncio

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from inference.api.base import ApiView, json_body
from inference.api.event_stream import output_format
from inference.api.schemas import GENERATION_ERRORS, EmbeddingListSerializer, documented
from inference.dialects.openai.embeddings import EmbeddingRequestSerializer
from inference.serving.generation import generation_start


class EmbeddingsView(ApiView):
    """POST /v1/embeddings."""

    admits_itself = True

    @documented(
        operation_id="embeddings_create",
        summary="Vectors of texts",
        description=(
            "Each input's hidden rows after the final norm, pooled and brought to length 1. An input that is longer "
            "than the model's context is refused. Parameters that aren't listed are refused."
        ),
        request=EmbeddingRequestSerializer,
        responses={200: EmbeddingListSerializer},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Embed one or several inputs."""
        plan = await json_body(request, EmbeddingRequestSerializer.shared().plan)
        generation = await generation_start(plan=plan, principal=self.principal)
        await generation.wait()
        # Writing millions of numbers is slow, so a thread does it.
        body = await asyncio.to_thread(lambda: orjson.dumps(output_format(generation).whole()))
        return HttpResponse(body, content_type="application/json", headers={"x-request-id": generation.request_id})
