"""Serve Ollama's endpoints that compute: generate, chat, embed, embeddings."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import json_body, json_response, read_further
from inference.api.event_stream import output_format
from inference.api.ollama import schemas
from inference.api.ollama.base import API_NAME, LineStream, OllamaView, nanoseconds, now, served_by_ollama_name
from inference.api.ollama.running import RunningGeneration
from inference.api.schemas import GENERATION_ERRORS
from inference.dialects.ollama.serializers import (
    OllamaChatRequestSerializer,
    OllamaEmbedRequestSerializer,
    OllamaGenerateRequestSerializer,
    OllamaLegacyEmbeddingRequestSerializer,
)
from inference.dialects.openai.outputs.embedding import EmbeddingFormat
from inference.serving.generation import Generation, generation_start
from inference.transport.worker_states import worker_states
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.served_model import ServedModel
from inference.values.states import ResidentModel

_STREAM = "A stream of JSON lines unless stream is false. Fields that aren't listed are refused."


class GenerationView(OllamaView):
    """Base of the views of /api/generate and /api/chat."""

    admits_itself = True

    async def _respond(self, plan: GenerationPlan, model: str, *, is_chat: bool, stream: bool) -> HttpResponseBase:
        generation = await generation_start(plan=plan, principal=self.principal, api_name=API_NAME)
        running = RunningGeneration(generation, model, is_chat=is_chat)
        if stream:
            return LineStream(generation, running)
        return json_response(await running.whole(), headers={"x-request-id": generation.request_id})

    async def _load(self, served: ServedModel, values: dict[str, Any], part: dict[str, Any]) -> HttpResponseBase:
        """Serve a request without a prompt: load the model, or unload it with keep_alive 0, then respond.

        A pinned model stays whatever its keep_alive is, and the response says so: ``load``.
        """
        keep_alive_s = values.get("keep_alive")
        self.principal.check_options(priority=0, keep_alive_s=keep_alive_s)
        held: list[ResidentModel] = []
        if keep_alive_s == 0:
            workers = (await worker_states()).values()
            held = [item for worker in workers for item in worker.models if item.checkpoint_id == served.checkpoint_id]
        if held or keep_alive_s != 0:
            # max_tokens 0 and one token: the request ends on arrival, so nothing is computed.
            plan = GenerationPlan(
                endpoint="completion",
                model=served.name,
                prompts=({"token_ids": [0]},),
                params=SamplingParams(max_tokens=0, temperature=0.0, seed=0),
                keep_alive_s=keep_alive_s,
            )
            generation = await generation_start(plan=plan, principal=self.principal, api_name=API_NAME)
            await generation.wait()
        is_staying = keep_alive_s != 0 or any(item.pinned for item in held)
        reason = "load" if is_staying else "unload"
        return json_response(
            {"model": values["model"], "created_at": now(), **part, "done": True, "done_reason": reason}
        )


class GenerateView(GenerationView):
    """POST /api/generate."""

    @schemas.documented(
        operation_id="ollama_generate",
        summary="Continue a prompt",
        description=_STREAM,
        request=OllamaGenerateRequestSerializer,
        responses={
            (200, "application/json"): schemas.GeneratedSerializer,
            (200, "application/x-ndjson"): OpenApiTypes.STR,
        },
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Respond to a prompt with the model's template, or continue the prompt as raw text."""
        serializer = OllamaGenerateRequestSerializer.shared()
        values = await json_body(request, serializer.parse)
        served = await served_by_ollama_name(values["model"])
        if not values.get("prompt") and not values.get("suffix"):
            return await self._load(served, values, {"response": ""})
        plan = await read_further(request, lambda: serializer.plan(values, served))
        return await self._respond(plan, values["model"], is_chat=False, stream=values.get("stream", True))


class ChatView(GenerationView):
    """POST /api/chat."""

    @schemas.documented(
        operation_id="ollama_chat",
        summary="Answer a conversation",
        description=_STREAM,
        request=OllamaChatRequestSerializer,
        responses={
            (200, "application/json"): schemas.ChattedSerializer,
            (200, "application/x-ndjson"): OpenApiTypes.STR,
        },
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Write the next message."""
        serializer = OllamaChatRequestSerializer.shared()
        values = await json_body(request, serializer.parse)
        served = await served_by_ollama_name(values["model"])
        if not values.get("messages"):
            return await self._load(served, values, {"message": {"role": "assistant", "content": ""}})
        plan = await read_further(request, lambda: serializer.plan(values, served))
        return await self._respond(plan, values["model"], is_chat=True, stream=values.get("stream", True))


class EmbedView(OllamaView):
    """POST /api/embed."""

    admits_itself = True

    @schemas.documented(
        operation_id="ollama_embed",
        summary="Vectors of texts",
        request=OllamaEmbedRequestSerializer,
        responses={200: schemas.EmbeddedSerializer},
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Embed one or several texts; the vectors have length 1."""
        started = time.monotonic()
        serializer = OllamaEmbedRequestSerializer.shared()
        values = await json_body(request, serializer.parse)
        served = await served_by_ollama_name(values["model"])
        plan = await read_further(request, lambda: serializer.plan(values, served))
        generation = await _embedding(plan, self)
        payload = await asyncio.to_thread(lambda: cast("EmbeddingFormat", output_format(generation)).vectors().tolist())
        return json_response(
            {
                "model": values["model"],
                "embeddings": payload,
                "total_duration": nanoseconds(time.monotonic() - started),
                "load_duration": 0,
                "prompt_eval_count": generation.builder.prompt_tokens,
            }
        )


class LegacyEmbeddingsView(OllamaView):
    """POST /api/embeddings, the older endpoint: one text, and a vector that isn't normalised."""

    admits_itself = True

    @schemas.documented(
        operation_id="ollama_embeddings",
        summary="The vector of one text",
        request=OllamaLegacyEmbeddingRequestSerializer,
        responses={200: schemas.LegacyEmbeddedSerializer},
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Embed one text."""
        values = await json_body(request, OllamaLegacyEmbeddingRequestSerializer.shared().parse)
        served = await served_by_ollama_name(values["model"])
        if not values["prompt"]:
            return json_response({"embedding": []})
        values["input"] = [values.pop("prompt")]
        plan = OllamaEmbedRequestSerializer.shared().plan(values, served, normalize=False)
        generation = await _embedding(plan, self)
        return json_response({"embedding": cast("EmbeddingFormat", output_format(generation)).vectors()[0].tolist()})


async def _embedding(plan: GenerationPlan, view: OllamaView) -> Generation:
    generation = await generation_start(plan=plan, principal=view.principal, api_name=API_NAME)
    await generation.wait()
    return generation
