"""The fields that endpoints share beyond the grammar's: how to sample, and how to wait."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.dialects.fields import (
    LogitBiasField,
    StopField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictNumberField,
    TokenIdsField,
)
from inference.values import sampling_params as limits

MAX_PRIORITY = 100


class PriorityFieldMixin(serializers.Serializer[Any]):
    """The field of everything that waits for an engine."""

    priority = StrictIntegerField(
        required=False, min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, allow_null=True, help_text="Lower goes first."
    )


class QueueFieldsMixin(PriorityFieldMixin):
    """The fields of requests whose prompts are cached."""

    cache_salt = StrictCharField(
        required=False, max_length=256, allow_null=True, help_text="Prefixes are shared only under the same salt."
    )


class SamplingFieldsMixin(QueueFieldsMixin):
    """The fields of all endpoints in OpenAI's shape that choose tokens."""

    temperature = StrictNumberField(required=False, min_value=0, max_value=2, allow_null=True, help_text="0: greedy.")
    top_p = StrictNumberField(required=False, min_value=0, max_value=1, allow_null=True, help_text="Above 0.")
    stop = StopField(required=False, allow_null=True)
    presence_penalty = StrictNumberField(required=False, min_value=-2, max_value=2, allow_null=True)
    frequency_penalty = StrictNumberField(required=False, min_value=-2, max_value=2, allow_null=True)
    logit_bias = LogitBiasField(required=False, allow_null=True)
    seed = StrictIntegerField(
        required=False, min_value=-limits.SEED_RANGE, max_value=limits.SEED_RANGE - 1, allow_null=True
    )
    # Additions, by vLLM's names.
    top_k = StrictIntegerField(
        required=False, min_value=-1, max_value=limits.MAX_TOKENS_LIMIT, allow_null=True, help_text="0 or -1: off."
    )
    min_p = StrictNumberField(required=False, min_value=0, max_value=1, allow_null=True)
    repetition_penalty = StrictNumberField(
        required=False, min_value=0, max_value=10, allow_null=True, help_text="Above 0; 1: off."
    )
    min_tokens = StrictIntegerField(required=False, min_value=0, max_value=limits.MAX_TOKENS_LIMIT, allow_null=True)
    stop_token_ids = TokenIdsField(required=False, max_length=limits.MAX_STOP_TOKEN_IDS, allow_null=True)
    ignore_eos = StrictBooleanField(required=False, allow_null=True)
    skip_special_tokens = StrictBooleanField(required=False, allow_null=True)
