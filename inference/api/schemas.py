"""Response schemas for the OpenAPI document; tests compare real responses with the schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers

View = TypeVar("View", bound=Callable[..., Any])


def _one_of(*values: str, help_text: str | None = None) -> serializers.RegexField:
    """Return a field of a few values, as a pattern: enums of equal field names collide in the document."""
    return serializers.RegexField(f"^({'|'.join(values)})$".replace(".", "\\."), help_text=help_text)


class ErrorBodySerializer(serializers.Serializer[Any]):
    """The error's message, type, param and code."""

    message = serializers.CharField()
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    code = serializers.CharField(allow_null=True)


class ErrorSerializer(serializers.Serializer[Any]):
    """OpenAI's error object."""

    error = ErrorBodySerializer()


class KeptPrefixSerializer(serializers.Serializer[Any]):
    """The first tokens of the prompt whose state stays in the prefix cache."""

    tokens = serializers.IntegerField(min_value=1)
    seconds = serializers.IntegerField(min_value=1, help_text="How long, unless running requests need the memory.")


class PromptTokensDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the prompt."""

    cached_tokens = serializers.IntegerField(min_value=0)
    cache_miss_reason = serializers.CharField(
        required=False, help_text="Why not all of the prompt but its last token was in the prefix cache."
    )
    kept_prefixes = KeptPrefixSerializer(
        many=True, required=False, help_text="Only if the messages have cache_control marks."
    )


class CompletionTokensDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the output."""

    reasoning_tokens = serializers.IntegerField(min_value=0, help_text="Tokens of thinking.")


class UsageSerializer(serializers.Serializer[Any]):
    """Token counts."""

    prompt_tokens = serializers.IntegerField(min_value=0)
    completion_tokens = serializers.IntegerField(min_value=0)
    total_tokens = serializers.IntegerField(min_value=0)
    prompt_tokens_details = PromptTokensDetailsSerializer()
    completion_tokens_details = CompletionTokensDetailsSerializer(
        required=False, help_text="Only of models that mark their thinking."
    )


class CompletionLogprobsSerializer(serializers.Serializer[Any]):
    """Four parallel lists; the first token of an echoed prompt has no log-probability."""

    tokens = serializers.ListField(child=serializers.CharField())
    token_logprobs = serializers.ListField(child=serializers.FloatField(allow_null=True))
    top_logprobs = serializers.ListField(child=serializers.DictField(child=serializers.FloatField(), allow_null=True))
    text_offset = serializers.ListField(child=serializers.IntegerField())


class PromptLogprobSerializer(serializers.Serializer[Any]):
    """One token at a position of the prompt."""

    logprob = serializers.FloatField()
    rank = serializers.IntegerField(allow_null=True)
    decoded_token = serializers.CharField()


def _prompt_logprobs() -> serializers.ListField:
    return serializers.ListField(
        child=serializers.DictField(child=PromptLogprobSerializer(), allow_null=True),
        required=False,
        allow_null=True,
        help_text="Per position, token id to candidate; null at the first.",
    )


def _token_ids() -> serializers.ListField:
    return serializers.ListField(child=serializers.IntegerField(), required=False, allow_null=True)


class _ChoiceSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField(min_value=0)
    finish_reason = serializers.CharField(
        allow_null=True, help_text="stop, length, tool_calls or abort; null while it goes on."
    )
    stop_reason = serializers.JSONField(
        required=False, allow_null=True, help_text="The stop string or token id that ended it."
    )
    token_ids = _token_ids()


class CompletionChoiceSerializer(_ChoiceSerializer):
    """One text."""

    text = serializers.CharField()
    logprobs = CompletionLogprobsSerializer(allow_null=True)
    prompt_token_ids = _token_ids()
    prompt_logprobs = _prompt_logprobs()


class CompletionSerializer(serializers.Serializer[Any]):
    """Response of POST /v1/completions; also each chunk of its stream."""

    id = serializers.CharField()
    object = _one_of("text_completion")
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = CompletionChoiceSerializer(many=True)
    usage = UsageSerializer(allow_null=True, required=False)


class TokenLogprobSerializer(serializers.Serializer[Any]):
    """A token at a position."""

    token = serializers.CharField()
    logprob = serializers.FloatField()
    bytes = serializers.ListField(child=serializers.IntegerField(min_value=0, max_value=255))


class PositionLogprobSerializer(TokenLogprobSerializer):
    """The sampled token and the most probable alternatives."""

    top_logprobs = TokenLogprobSerializer(many=True)


class ChatLogprobsSerializer(serializers.Serializer[Any]):
    """Log-probabilities of the content."""

    content = PositionLogprobSerializer(many=True)
    refusal = serializers.JSONField(allow_null=True)


class CalledFunctionSerializer(serializers.Serializer[Any]):
    """The name and arguments of a called function."""

    name = serializers.CharField()
    arguments = serializers.CharField(help_text="JSON, as the model wrote it.")


class ToolCallSerializer(serializers.Serializer[Any]):
    """A tool call that the model requests."""

    id = serializers.CharField()
    type = _one_of("function")
    function = CalledFunctionSerializer()


class MessageSerializer(serializers.Serializer[Any]):
    """The assistant's message."""

    role = _one_of("assistant")
    content = serializers.CharField(allow_null=True, help_text="Null if there are only calls or thoughts.")
    reasoning_content = serializers.CharField(required=False, help_text="The model's thinking.")
    tool_calls = ToolCallSerializer(many=True, required=False)
    refusal = serializers.CharField(allow_null=True)


class ChatChoiceSerializer(_ChoiceSerializer):
    """One choice."""

    message = MessageSerializer()
    logprobs = ChatLogprobsSerializer(allow_null=True)


class ChatCompletionSerializer(serializers.Serializer[Any]):
    """Response of POST /v1/chat/completions."""

    id = serializers.CharField()
    object = _one_of("chat.completion")
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = ChatChoiceSerializer(many=True)
    usage = UsageSerializer()
    prompt_token_ids = _token_ids()
    prompt_logprobs = _prompt_logprobs()


class EmbeddingSerializer(serializers.Serializer[Any]):
    """The vector of one input."""

    object = _one_of("embedding")
    index = serializers.IntegerField(min_value=0)
    embedding = serializers.JSONField(
        help_text="A list of numbers; with encoding_format base64 a string: float32, little-endian."
    )


class EmbeddingUsageSerializer(serializers.Serializer[Any]):
    """Tokens of all inputs."""

    prompt_tokens = serializers.IntegerField(min_value=0)
    total_tokens = serializers.IntegerField(min_value=0)


class EmbeddingListSerializer(serializers.Serializer[Any]):
    """Response of POST /v1/embeddings, in the order of the inputs."""

    id = serializers.CharField()
    object = _one_of("list")
    model = serializers.CharField()
    data = EmbeddingSerializer(many=True)  # type: ignore[assignment]
    usage = EmbeddingUsageSerializer()


class RerankedDocumentSerializer(serializers.Serializer[Any]):
    """A document as it was sent."""

    text = serializers.CharField(allow_blank=True)


class RerankResultSerializer(serializers.Serializer[Any]):
    """One document's score."""

    index = serializers.IntegerField(min_value=0, help_text="Of the document in the request.")
    relevance_score = serializers.FloatField(help_text="-1 to 1.")
    document = RerankedDocumentSerializer(required=False)


class RerankedSerializer(serializers.Serializer[Any]):
    """Response of POST /v1/rerank, best first."""

    id = serializers.CharField()
    model = serializers.CharField()
    results = RerankResultSerializer(many=True)
    usage = EmbeddingUsageSerializer()


class ModelSerializer(serializers.Serializer[Any]):
    """A served model."""

    id = serializers.CharField()
    object = _one_of("model")
    created = serializers.IntegerField()
    owned_by = serializers.CharField()
    max_model_len = serializers.IntegerField(help_text="Prompt plus output, in tokens.")
    root = serializers.CharField(  # type: ignore[assignment]
        required=False, help_text="Of an alias: the checkpoint that it means."
    )
    revision = serializers.IntegerField(required=False, help_text="Of an alias: its current revision.")
    parent = serializers.CharField(required=False, help_text="Of a LoRA adapter: its base.")  # type: ignore[assignment]


class ModelListSerializer(serializers.Serializer[Any]):
    """All served models."""

    object = _one_of("list")
    data = ModelSerializer(many=True)  # type: ignore[assignment]


class ModelDeletedSerializer(serializers.Serializer[Any]):
    """The alias was deleted."""

    id = serializers.CharField()
    object = _one_of("model")
    deleted = serializers.BooleanField()


class HealthSerializer(serializers.Serializer[Any]):
    """The server's state."""

    status = _one_of("ok", "degraded")
    version = serializers.CharField()
    loaded_models = serializers.ListField(child=serializers.CharField())


class ProbeSerializer(serializers.Serializer[Any]):
    """A probe's response; ``reasons`` names the missing parts."""

    status = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField(), required=False)


class TokenizeSerializer(serializers.Serializer[Any]):
    """Response of POST /tokenize."""

    tokens = serializers.ListField(child=serializers.IntegerField())
    count = serializers.IntegerField()
    max_model_len = serializers.IntegerField()
    token_strs = serializers.ListField(child=serializers.CharField(), required=False)


class TokenizerInfoSerializer(serializers.Serializer[Any]):
    """Response of GET /tokenizer_info."""

    tokenizer_class = serializers.CharField(help_text="Name of the vocabulary, or what kind of file it comes from.")
    model_max_length = serializers.IntegerField()
    vocab_size = serializers.IntegerField(help_text="Rows of the embedding; ids are below.")
    bos_token = serializers.CharField(allow_null=True)
    bos_token_id = serializers.IntegerField(allow_null=True)
    eos_token = serializers.CharField(allow_null=True)
    eos_token_id = serializers.IntegerField(allow_null=True, help_text="The smallest, if there are several.")
    chat_template = serializers.CharField(allow_null=True, help_text="Jinja source.")


class AppliedTemplateSerializer(serializers.Serializer[Any]):
    """Response of POST /apply-template."""

    prompt = serializers.CharField(help_text="Control tokens are written as text.")


class InfillSerializer(serializers.Serializer[Any]):
    """Response of POST /infill."""

    content = serializers.CharField(help_text="The text between prefix and suffix.")
    model = serializers.CharField()
    stop = serializers.BooleanField(help_text="Always true: the output is complete.")
    stop_type = serializers.CharField(help_text="eos, limit, word or none.")
    stopping_word = serializers.CharField(allow_blank=True)
    tokens_predicted = serializers.IntegerField()
    tokens_evaluated = serializers.IntegerField(help_text="Of the prompt, cached ones included.")
    tokens_cached = serializers.IntegerField()
    truncated = serializers.BooleanField()


class DetokenizeSerializer(serializers.Serializer[Any]):
    """Response of POST /detokenize: the text under vLLM's name and blazr's older one."""

    prompt = serializers.CharField()
    content = serializers.CharField()


class JobSerializer(serializers.Serializer[Any]):
    """A queued generation."""

    id = serializers.UUIDField()
    object = _one_of("job")
    state = _one_of("queued", "running", "succeeded", "failed", "cancelled")
    endpoint = _one_of("completion", "chat")
    model = serializers.CharField()
    batch_label = serializers.CharField()
    idempotency_key = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField()
    attempts = serializers.IntegerField()
    cancel_requested = serializers.BooleanField()
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    error = ErrorBodySerializer(allow_null=True, help_text="Why it failed, or why its last attempt did.")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)


class JobSubmittedSerializer(serializers.Serializer[Any]):
    """The stored jobs, in the order of the submission."""

    object = _one_of("list")
    data = JobSerializer(many=True)  # type: ignore[assignment]


class JobListSerializer(serializers.Serializer[Any]):
    """A page of jobs, newest first."""

    object = _one_of("list")
    data = JobSerializer(many=True)  # type: ignore[assignment]
    has_more = serializers.BooleanField()
    counts = inline_serializer(
        "JobCounts",
        {
            name: serializers.IntegerField()
            for name in ("queued", "running", "succeeded", "failed", "cancelled", "completion_tokens")
        },
        help_text="Of all jobs that the caller may see (with this batch_label).",
    )


_ERRORS: dict[int, str] = {
    400: "The request can't be served as it is written; param names the field.",
    401: "No API key, or one that isn't valid.",
    403: "Outside of the key's scopes or models; sent by a page of another site, or without the CSRF token.",
    404: "No such model, job or endpoint.",
    405: "Not for this method.",
    409: "The thing is in a state that doesn't allow this.",
    413: "The body is too large.",
    415: "The body isn't declared as JSON.",
    422: "The checkpoint can't be served.",
    429: "No room in the queue, or a limit of the key is reached; Retry-After says when to come back.",
    500: "Something broke on our side.",
    503: "Not now: the model is loading, or no worker is there.",
}

GENERATION_ERRORS = (400, 401, 403, 404, 413, 415, 422, 429, 500, 503)
"""Error codes of endpoints that compute with a model."""


def documented(
    *, request: Any = None, responses: dict[Any, Any], errors: tuple[int, ...] = (), **kwargs: Any
) -> Callable[[View], View]:
    """``extend_schema`` with the common errors, given as status codes."""
    responses = dict(responses)
    for status in errors:
        responses[status] = OpenApiResponse(ErrorSerializer, description=_ERRORS[status])
    decorator: Callable[[View], View] = extend_schema(request=request, responses=responses, **kwargs)
    return decorator
