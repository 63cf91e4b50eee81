"""Tokenise, detokenise and render chat templates over HTTP, without generating."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter

from inference.access.admission import text_admitted
from inference.api.base import ApiView, json_body, json_response, read_further
from inference.api.platform.tokenize_serializers import (
    ApplyTemplateRequestSerializer,
    DetokenizeRequestSerializer,
    TokenizeRequestSerializer,
)
from inference.api.schemas import (
    AppliedTemplateSerializer,
    DetokenizeSerializer,
    TokenizerInfoSerializer,
    TokenizeSerializer,
    documented,
)
from inference.dialects.openai.chat_fields import chat_options
from inference.dialects.openai.chat_prompt import chat_prompt
from inference.errors import InvalidRequest, UnsupportedFeature
from inference.serving.served_models import chat_prompt_for_model, served_model_get, served_model_or_only
from inference.serving.tokenizers import ModelText, prompt_with_files, tokenizer_cache
from inference.values.messages import PromptMessage
from inference.values.served_model import ServedModel

_ERRORS = (400, 401, 403, 404, 413, 415, 422, 429, 503)


class TokenizeView(ApiView):
    """POST /tokenize."""

    admits_itself = True

    @documented(
        operation_id="tokenize",
        summary="Token ids of a text or a conversation",
        request=TokenizeRequestSerializer,
        responses={200: TokenizeSerializer},
        errors=_ERRORS,
        tags=["tokens"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Tokenise a text or a conversation as a completion or chat request would."""
        values = await json_body(request, TokenizeRequestSerializer.shared().parse)
        served = await served_model_or_only(name=values.get("model"))
        _check_tokenizer(served)
        prompt = await read_further(request, lambda: _prompt(values, served))

        async with text_admitted(self.principal, values):
            whole = await prompt_with_files(prompt, served)

            def work(text: ModelText) -> tuple[list[int], list[str]]:
                ids = text.token_ids(whole, parse_special=values["parse_special"])
                if not values["return_token_strs"]:
                    return ids, []
                return ids, [text.tokenizer.decode([item], skip_special_tokens=False) for item in ids]

            ids, strings = await tokenizer_cache().run(served, work)
        payload: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.max_model_len}
        if values["return_token_strs"]:
            payload["token_strs"] = strings
        return json_response(payload)


class ApplyTemplateView(ApiView):
    """POST /apply-template."""

    admits_itself = True

    @documented(
        operation_id="apply_template",
        summary="The text that a conversation becomes",
        description="Send it to /v1/completions with parse_special: true and add_special_tokens: false for the same.",
        request=ApplyTemplateRequestSerializer,
        responses={200: AppliedTemplateSerializer},
        errors=_ERRORS,
        tags=["tokens"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Render messages with the model's template."""
        values = await json_body(request, ApplyTemplateRequestSerializer.shared().parse)
        served = await served_model_get(name=values["model"])
        _check_tokenizer(served)
        prompt = await read_further(
            request, lambda: chat_prompt_for_model(chat_prompt(values), chat_options(values), served)
        )
        async with text_admitted(self.principal, values):
            text = await tokenizer_cache().run(served, lambda model: model.prompt_text(prompt))
        return json_response({"prompt": text})


class DetokenizeView(ApiView):
    """POST /detokenize."""

    admits_itself = True

    @documented(
        operation_id="detokenize",
        summary="The text of token ids",
        request=DetokenizeRequestSerializer,
        responses={200: DetokenizeSerializer},
        errors=_ERRORS,
        tags=["tokens"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Decode ids; bytes that are not UTF-8 become U+FFFD."""
        values = await json_body(request, DetokenizeRequestSerializer.shared().parse)
        served = await served_model_or_only(name=values.get("model"))
        _check_tokenizer(served)
        await read_further(request, lambda: served.check_token_ids(values["tokens"], param="tokens"))
        skip = values["skip_special_tokens"]
        async with text_admitted(self.principal, values):
            text = await tokenizer_cache().run(
                served, lambda model: model.tokenizer.decode(values["tokens"], skip_special_tokens=skip)
            )
        return json_response({"prompt": text, "content": text})


class TokenizerInfoView(ApiView):
    """GET /tokenizer_info."""

    @documented(
        operation_id="tokenizer_info",
        summary="What a client needs to know of a tokenizer",
        description="vLLM's endpoint: evaluation harnesses tokenise through the server when it is there.",
        parameters=[OpenApiParameter("model", str, description="May be left out where one model only is served.")],
        responses={200: TokenizerInfoSerializer},
        errors=_ERRORS,
        tags=["tokens"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return the tokenizer's control tokens and the chat template."""
        unknown = next((name for name in request.GET if name != "model"), None)
        if unknown is not None:
            raise InvalidRequest(f"unknown parameter {unknown[:80]!r}; there is model.", param=unknown[:80])
        served = await served_model_or_only(name=request.GET.get("model"))
        _check_tokenizer(served)
        spec = served.tokenizer
        eos_token_id = min(spec.eos_token_ids, default=None)

        def texts(text: ModelText) -> list[str | None]:
            ids = (spec.bos_token_id, eos_token_id)
            return [None if item is None else text.tokenizer.special_text(item) for item in ids]

        bos_token, eos_token = await tokenizer_cache().run(served, texts)
        return json_response(
            {
                "tokenizer_class": spec.name or spec.kind,
                "model_max_length": served.max_model_len,
                "vocab_size": spec.vocab_size,
                "bos_token": bos_token,
                "bos_token_id": spec.bos_token_id,
                "eos_token": eos_token,
                "eos_token_id": eos_token_id,
                "chat_template": spec.chat_template,
            }
        )


def _check_tokenizer(served: ServedModel) -> None:
    if served.tokenizer.kind == "none":
        raise UnsupportedFeature(
            f"The model {served.name!r} has no tokenizer; its prompts are token ids.", param="model"
        )


def _prompt(values: dict[str, Any], served: ServedModel) -> PromptMessage:
    given = [name for name in ("prompt", "content", "messages") if name in values]
    if len(given) != 1:
        raise InvalidRequest(
            f"give one of prompt, content and messages; this request has {' and '.join(given) or 'none of them'}.",
            param=given[1] if len(given) > 1 else "prompt",
        )
    if given == ["messages"]:
        return chat_prompt_for_model(chat_prompt(values), chat_options(values), served)
    for name in (
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "tools",
        "reasoning_effort",
    ):
        if name in values:
            raise InvalidRequest(f"{name} only goes with messages.", param=name)
    return {"text": values[given[0]], "add_special_tokens": values.get("add_special_tokens", True)}
