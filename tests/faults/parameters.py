"""Wrong values of every member of every request body: the tables of the fault test about parameters.

The values come from the serializers' own fields, so a new member is attacked without a new row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from rest_framework import serializers

from inference.api.openai.batch_schemas import (
    BatchPriorityRequestSerializer,
    BatchRequestSerializer,
    BatchScheduleRequestSerializer,
)
from inference.api.openai.rerank import DocumentsField, RerankRequestSerializer
from inference.api.platform.alias_views import PromoteRequestSerializer, RollbackRequestSerializer
from inference.api.platform.infill import InfillRequestSerializer
from inference.api.platform.job_serializers import JobSubmissionSerializer
from inference.api.platform.key_views import KeyRequestSerializer
from inference.api.platform.lifecycle_views import PinRequestSerializer
from inference.api.platform.lora_views import LoadLoraRequestSerializer, UnloadLoraRequestSerializer
from inference.api.platform.schedule_serializers import ScheduleBatchRequestSerializer, ScheduleRequestSerializer
from inference.api.platform.state_serializers import StateChangeSerializer, StateCreateSerializer
from inference.api.platform.tokenize_serializers import (
    ApplyTemplateRequestSerializer,
    DetokenizeRequestSerializer,
    TokenizeRequestSerializer,
)
from inference.dialects import fields
from inference.dialects.anthropic.serializers import CountTokensRequestSerializer, MessageRequestSerializer
from inference.dialects.ollama import serializers as ollama
from inference.dialects.openai.embeddings import EmbeddingRequestSerializer
from inference.dialects.openai.requests import (
    ChatRequestSerializer,
    CompletionRequestSerializer,
    StreamOptionsSerializer,
)
from inference.dialects.responses.serializers import InputTokensRequestSerializer, ResponseRequestSerializer
from inference.dialects.strict_serializer import StrictSerializer

MODEL: dict[str, Any] = {"model": "tiny"}
CHAT = MODEL | {"messages": [{"role": "user", "content": "Hi"}]}
PROMPT = MODEL | {"prompt": "Hi"}


@dataclass(frozen=True)
class Target:
    """A body and the serializer of its members.

    Attributes:
        path: The endpoint.
        body: What the endpoint needs.
        within: The member of the body that the serializer reads; empty: the body itself.
    """

    path: str
    serializer: type[serializers.Serializer[Any]]
    body: dict[str, Any]
    within: str = ""

    def text_with(self, name: str, raw: bytes) -> bytes:
        """Return the body as JSON, with the member ``name`` written as ``raw``."""
        inner = dict(self.body.get(self.within, {}) if self.within else self.body)
        inner.pop(name, None)
        member = orjson.dumps(name) + b":" + raw
        text = orjson.dumps(inner)[:-1] + (b"," if inner else b"") + member + b"}"
        if not self.within:
            return text
        outer = {key: value for key, value in self.body.items() if key != self.within}
        return orjson.dumps(outer)[:-1] + b"," + orjson.dumps(self.within) + b":" + text + b"}"


BATCH = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
TARGETS = (
    Target("/v1/completions", CompletionRequestSerializer, PROMPT),
    Target("/v1/chat/completions", ChatRequestSerializer, CHAT),
    Target("/v1/chat/completions", StreamOptionsSerializer, CHAT | {"stream": True}, "stream_options"),
    Target("/v1/embeddings", EmbeddingRequestSerializer, MODEL | {"input": "a"}),
    Target("/v1/rerank", RerankRequestSerializer, MODEL | {"query": "a", "documents": ["b"]}),
    Target("/v1/responses", ResponseRequestSerializer, MODEL | {"input": "a"}),
    Target("/v1/responses/input_tokens", InputTokensRequestSerializer, MODEL | {"input": "a"}),
    Target("/v1/messages", MessageRequestSerializer, CHAT | {"max_tokens": 1}),
    Target("/v1/messages/count_tokens", CountTokensRequestSerializer, CHAT),
    Target("/tokenize", TokenizeRequestSerializer, PROMPT),
    Target("/detokenize", DetokenizeRequestSerializer, MODEL | {"tokens": [1]}),
    Target("/apply-template", ApplyTemplateRequestSerializer, CHAT),
    Target("/infill", InfillRequestSerializer, MODEL | {"input_prefix": "a", "input_suffix": "b"}),
    Target("/v1/states", StateCreateSerializer, PROMPT | {"name": "a"}),
    Target("/v1/states/a", StateChangeSerializer, {"pinned": True}),
    Target("/api/jobs", JobSubmissionSerializer, {"jobs": [{"endpoint": "completion", "body": PROMPT}]}),
    Target("/api/jobs", CompletionRequestSerializer, {"endpoint": "completion", "body": PROMPT}, "body"),
    Target("/api/jobs", ChatRequestSerializer, {"endpoint": "chat", "body": CHAT}, "body"),
    Target("/api/generate", ollama.OllamaGenerateRequestSerializer, PROMPT),
    Target("/api/generate", ollama.OptionsSerializer, PROMPT, "options"),
    Target("/api/chat", ollama.OllamaChatRequestSerializer, CHAT),
    Target("/api/chat", ollama.OptionsSerializer, CHAT, "options"),
    Target("/api/embed", ollama.OllamaEmbedRequestSerializer, MODEL | {"input": "a"}),
    Target("/api/embed", ollama.OptionsSerializer, MODEL | {"input": "a"}, "options"),
    Target("/api/embeddings", ollama.OllamaLegacyEmbeddingRequestSerializer, PROMPT),
    Target("/api/show", ollama.OllamaModelNameSerializer, MODEL),
    Target("/api/copy", ollama.OllamaCopyRequestSerializer, {"source": "tiny", "destination": "copy"}),
    Target("/api/create", ollama.OllamaCreateRequestSerializer, {"model": "new", "from": "nothing"}),
    Target("/v1/keys", KeyRequestSerializer, {"name": "a"}),
    Target("/v1/models/alias/promote", PromoteRequestSerializer, MODEL),
    Target("/v1/models/alias/rollback", RollbackRequestSerializer, {}),
    Target("/v1/models/tiny/pin", PinRequestSerializer, {"pinned": True}),
    Target("/v1/load_lora_adapter", LoadLoraRequestSerializer, {"lora_name": "tiny:a", "lora_path": "/nowhere"}),
    Target("/v1/unload_lora_adapter", UnloadLoraRequestSerializer, {"lora_name": "tiny:a"}),
    Target("/v1/batches", BatchRequestSerializer, BATCH),
    Target("/v1/batches/a/priority", BatchPriorityRequestSerializer, {"priority": 0}),
    Target("/api/schedules", ScheduleRequestSerializer, {"cron": "0 3 * * *", "action": "load", "model": "gone"}),
    Target(
        "/api/schedules",
        ScheduleBatchRequestSerializer,
        {"cron": "0 3 * * *", "action": "batch", "batch": BATCH},
        "batch",
    ),
    Target("/v1/batches/schedules", BatchScheduleRequestSerializer, BATCH | {"cron": "0 3 * * *"}),
)
OTHERS = {
    "GenerationSerializer",
    "OllamaRequestSerializer",
    "JobItemSerializer",
    "WebhookRequestSerializer",
    "ScheduleChangeSerializer",
    "OllamaPullRequestSerializer",
}
"""Bases of the others; items of a job's and a batch's members, tested with those; pulls and webhooks are off."""

NUMBERS = tuple(b"-1e308 -9223372036854775809 -1 1.5 2147483648 18446744073709551616 1e308".split())
NO_NUMBERS = (*b'"1" true [] {} [1] NaN Infinity -Infinity 1e999'.split(), b"9" * 5000)
NO_TEXTS = (b"1", b"true", b"[]", b"{}", b'["a",1]', b'"\\ud800"', b'"\xff"')
NO_IDS = (b"[-1]", b"[2147483648]", b"[18446744073709551616]", b"[1.5]", b"[true]", b'[1,"a"]', b"[null]", b"{}", b"1")
MANY_TEXTS = orjson.dumps(["a"] * 100_000)
LONG_TEXT = orjson.dumps("x" * 100_000)
NO_BIAS = (
    b"[]", b"1", b'{"-1":1}', b'{"18446744073709551616":1}', b'{"x":1}', b'{"1.5":1}', b'{"1":101}', b'{"1":1e308}',
    b'{"1":"a"}', b'{"1":true}', b'{"1":null}', b'{"1":[1]}', orjson.dumps({str(number): 1 for number in range(2000)}),
)  # fmt: skip


def wrong_values(field: serializers.Field[Any, Any, Any, Any]) -> Iterator[bytes]:
    """Yield values, as JSON, that ``field`` has to refuse."""
    if isinstance(field, serializers.IntegerField | serializers.FloatField):
        yield from (text for text in NUMBERS if _is_outside(field, float(text)))
        yield from NO_NUMBERS
    elif isinstance(field, serializers.BooleanField):
        yield from (b"0", b"1", b'"true"', b"[]", b"{}", b"NaN")
    elif isinstance(field, fields.TokenIdsField):
        yield from NO_IDS
    elif isinstance(field, fields.PromptField):
        yield from (*NO_IDS, b"[]", b"[[]]", b'["a",[1]]', b"true", MANY_TEXTS)
    elif isinstance(field, fields.LogitBiasField):
        yield from NO_BIAS
    elif isinstance(field, fields.StopField):
        yield from (b"1", b"{}", b'["a",1]', b'[""]', b"[null]", MANY_TEXTS, orjson.dumps("x" * 1025))
    elif isinstance(field, fields.KeepAliveField):
        yield from (b"true", b"[]", b"{}", b'"soon"', b'""', b"1e308", b"NaN", b'"9999999999h"', LONG_TEXT)
    elif isinstance(field, fields.StrictListField | DocumentsField):
        yield from (b"{}", b"1", b"[1]", b"[null]", b"[[]]", MANY_TEXTS)
    elif isinstance(field, serializers.ChoiceField | serializers.RegexField):
        yield from (b'"nonsense"', b"1", b"[]", b"{}", b"true")
    elif isinstance(field, serializers.CharField):
        yield from NO_TEXTS
        if field.max_length is not None:
            yield LONG_TEXT
    elif isinstance(field, StrictSerializer | fields.JSONObjectField):
        yield from (b"1", b'"a"', b"[]", b"true")
    else:
        yield from (b"1.5", b"[1]", b"[[]]", b"NaN")


def _is_outside(field: Any, value: float) -> bool:
    if isinstance(field, serializers.IntegerField) and not value.is_integer():
        return True
    low = -math.inf if field.min_value is None else field.min_value
    high = math.inf if field.max_value is None else field.max_value
    return not low <= value <= high
