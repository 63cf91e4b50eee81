"""Turn the body of an embedding request into a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from inference.dialects.fields import (
    InputField,
    KeepAliveField,
    StrictCharField,
    optional,
    optional_boolean,
    optional_integer,
)
from inference.dialects.openai.sampling_fields import QueueFieldsMixin
from inference.dialects.refusals import Refused
from inference.dialects.strict_serializer import StrictSerializer
from inference.values.messages import PromptMessage
from inference.values.plan import EmbeddingOptions, GenerationPlan
from inference.values.sampling_params import SamplingParams

INPUTS_PER_MESSAGE = 64
"""Inputs per message to a worker; the messages of a large request may go to several workers."""


MAX_DIMENSIONS = 1 << 20


POOLINGS = ("mean", "last", "cls")


REFUSED_IN_EMBEDDINGS: Mapping[str, Refused] = {
    "messages": Refused("send text or token ids as input; POST /apply-template makes text of a conversation"),
    "stream": Refused("vectors come in one answer", (False,)),
    "prompt": Refused("its name here is input"),
}


class PoolingFieldMixin(serializers.Serializer[Any]):
    """The field of requests that pool hidden states."""

    pooling = optional(serializers.ChoiceField, "Default: the model's setting, mean without one.", choices=POOLINGS)


class EmbeddingRequestSerializer(QueueFieldsMixin, PoolingFieldMixin, StrictSerializer):
    """Body of POST /v1/embeddings."""

    takes_hints = True
    refused = REFUSED_IN_EMBEDDINGS

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    input = InputField(help_text="Text, token ids, or a list of either.")
    encoding_format = optional(
        serializers.RegexField,
        "float (a list of numbers; the default) or base64 (float32, little-endian).",
        regex="^(float|base64)$",
        error_messages={"invalid": "must be float or base64."},
    )
    dimensions = optional_integer(
        1, MAX_DIMENSIONS, "Keep so many of the first numbers; sensible for models that were trained for it."
    )
    normalize = optional_boolean("Bring each vector to length 1. Default: true.")
    add_special_tokens = optional_boolean("Put the begin-of-sequence token before a text. Default: true.")
    keep_alive = KeepAliveField()

    def plan(self, body: object) -> GenerationPlan:
        """Validate ``body`` and return its plan.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        values = self.parse(body)
        special = values.get("add_special_tokens", True)
        inputs: list[PromptMessage] = [
            {"text": item, "add_special_tokens": special} if isinstance(item, str) else {"token_ids": item}
            for item in values["input"]
        ]
        return embedding_plan(
            values["model"],
            inputs,
            {
                "pooling": values.get("pooling"),
                "dimensions": values.get("dimensions"),
                "normalize": values.get("normalize", True),
                "encoding_format": values.get("encoding_format", "float"),
            },
            priority=values.get("priority", 0),
            cache_salt=values.get("cache_salt") or None,
            keep_alive_s=values.get("keep_alive"),
        )


def embedding_plan(
    model: str, inputs: Sequence[PromptMessage], options: EmbeddingOptions, **values: Any
) -> GenerationPlan:
    """Return a plan in which each prompt is a group of inputs.

    Args:
        model: The served name.
        inputs: Texts or lists of token ids.
        options: Pooling, dimensions and format of the vectors.
        values: Further members of the plan.
    """
    return GenerationPlan(
        endpoint="embedding",
        model=model,
        prompts=tuple(
            {"inputs": list(inputs[start : start + INPUTS_PER_MESSAGE])}
            for start in range(0, len(inputs), INPUTS_PER_MESSAGE)
        ),
        params=SamplingParams(max_tokens=0, temperature=0.0, seed=0),
        embedding=options,
        **values,
    )
