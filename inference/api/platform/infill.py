"""Serve POST /infill of llama.cpp's server: generate the text between a prefix and a suffix.

Names: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md.
``suffix`` of /v1/completions does the same with all parameters of that endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from inference.api.base import ApiView, json_body, json_response
from inference.api.schemas import GENERATION_ERRORS, InfillSerializer, documented
from inference.dialects.fields import (
    StopField,
    StrictCharField,
    optional,
    optional_boolean,
    optional_integer,
    optional_number,
)
from inference.dialects.openai.requests import plan_from_body
from inference.dialects.openai.sampling_fields import FurtherSamplersMixin
from inference.dialects.refusals import Refused
from inference.dialects.strict_serializer import StrictSerializer
from inference.serving.generation import Generation, generation_start
from inference.values import sampling_params as limits
from inference.values.plan import GenerationPlan

REFUSED_IN_INFILL: Mapping[str, Refused] = {
    "prompt": Refused("write the beginning of the middle at the end of input_prefix", ("",)),
    "input_extra": Refused("write other files into input_prefix", ([],)),
    "stream": Refused("use suffix of /v1/completions, which streams", (False,)),
    "n_probs": Refused("use logprobs of /v1/completions", (0,)),
}
_RENAMED = {"input_prefix": "prompt", "input_suffix": "suffix"}
_STOP_TYPES = {"length": "limit", "stop": "eos"}


class InfillRequestSerializer(FurtherSamplersMixin, StrictSerializer):
    """Body of POST /infill."""

    takes_hints = True
    refused = REFUSED_IN_INFILL

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    input_prefix = StrictCharField(allow_blank=True, help_text="What precedes the text.")
    input_suffix = StrictCharField(allow_blank=True, help_text="What follows it.")
    n_predict = optional_integer(-1, limits.MAX_TOKENS_LIMIT, "Most tokens; -1, the default: what the context leaves.")
    temperature = optional_number(0, 2, "0: greedy.")
    top_k = optional_integer(-1, limits.MAX_TOKENS_LIMIT, "Keep the k most probable tokens; 0 and -1: off.")
    top_p = optional_number(0, 1, "Above 0.")
    min_p = optional_number(0, 1, "Keep tokens with at least this share of the highest probability.")
    repeat_penalty = optional_number(0, 10, "Over prompt and output. Default: 1: off.")
    presence_penalty = optional_number(-2, 2, "As in completions.")
    frequency_penalty = optional_number(-2, 2, "As in completions.")
    seed = optional_integer(-limits.SEED_RANGE, limits.SEED_RANGE - 1, "-1, the default: drawn by the server.")
    stop = optional(StopField, "The text ends before it.")
    cache_prompt = optional_boolean("Accepted; prefixes are kept by the server's own rules.")

    def plan(self, body: object) -> GenerationPlan:
        """Validate ``body`` and return its plan.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        values = self.parse(body)
        values.pop("cache_prompt", None)
        if values.get("seed") == -1:
            del values["seed"]
        limit = values.pop("n_predict", -1)
        if limit != -1:
            values["max_tokens"] = limit
        plan = plan_from_body("completion", {_RENAMED.get(name, name): value for name, value in values.items()})
        return plan.without_limit() if limit == -1 else plan


class InfillView(ApiView):
    """POST /infill."""

    admits_itself = True

    @documented(
        operation_id="infill",
        summary="Fill the gap in a text",
        description="For models whose vocabulary has tokens for it; parameters that aren't listed are refused.",
        request=InfillRequestSerializer,
        responses={200: InfillSerializer},
        errors=GENERATION_ERRORS,
        tags=["tokens"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Generate the text between prefix and suffix."""
        plan = await json_body(request, InfillRequestSerializer.shared().plan)
        generation = await generation_start(plan=plan, principal=self.principal)
        await generation.wait()
        return json_response(_response(generation), headers={"x-request-id": generation.request_id})


def _response(generation: Generation) -> dict[str, Any]:
    prompt = generation.builder.prompts[0]
    choice, usage = prompt.choices[0], generation.builder.usage()
    word = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
    return {
        "content": choice.text,
        "model": generation.served.name,
        "stop": True,
        "stop_type": "word" if word else _STOP_TYPES.get(choice.finish_reason or "", "none"),
        "stopping_word": word,
        "tokens_predicted": usage["completion_tokens"],
        "tokens_evaluated": usage["prompt_tokens"],
        "tokens_cached": usage["prompt_tokens_details"]["cached_tokens"],
        "truncated": False,
    }
