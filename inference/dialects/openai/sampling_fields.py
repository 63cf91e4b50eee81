"""Define the request fields for sampling, priority and prefix caching."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.dialects.fields import (
    LogitBiasField,
    StopField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictListField,
    StrictNumberField,
    TokenIdsField,
)
from inference.errors import InvalidRequest
from inference.values import sampling_params as limits

MAX_PRIORITY = 100


class PriorityFieldMixin(serializers.Serializer[Any]):
    """The priority field of all requests that an engine queues."""

    priority = StrictIntegerField(
        required=False, min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, allow_null=True, help_text="Lower goes first."
    )


class QueueFieldsMixin(PriorityFieldMixin):
    """The fields of requests with cached prompts."""

    cache_salt = StrictCharField(
        required=False, max_length=256, allow_null=True, help_text="Prefixes are shared only under the same salt."
    )


class FurtherSamplersMixin(serializers.Serializer[Any]):
    """llama.cpp's further samplers, by llama.cpp's names; SamplingParams has the defaults."""

    typical_p = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="Keep the tokens of nearly the expected surprise, up to this probability. Default: 1; 0, 1: off.",
    )
    top_n_sigma = StrictNumberField(
        required=False,
        min_value=-1,
        max_value=100,
        allow_null=True,
        help_text="Keep logits within so many standard deviations of the greatest. Default: 0; 0, -1: off.",
    )
    dynatemp_range = StrictNumberField(
        required=False,
        min_value=0,
        max_value=2,
        allow_null=True,
        help_text="The temperature lies up to this below or above temperature, by the entropy. Default: 0: off.",
    )
    dynatemp_exponent = StrictNumberField(
        required=False,
        min_value=0,
        max_value=10,
        allow_null=True,
        help_text="The share of the greatest entropy goes to this power. Default: 1.",
    )
    mirostat = StrictIntegerField(
        required=False,
        min_value=0,
        max_value=2,
        allow_null=True,
        help_text="Keep the surprise of the tokens near mirostat_tau, by version 1 or 2. Default: 0: off.",
    )
    mirostat_tau = StrictNumberField(
        required=False,
        min_value=0,
        max_value=100,
        allow_null=True,
        help_text="Surprise in bits. Default: 5.",
    )
    mirostat_eta = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="How fast mirostat_tau is reached. Default: 0.1.",
    )
    dry_multiplier = StrictNumberField(
        required=False,
        min_value=0,
        max_value=100,
        allow_null=True,
        help_text="Penalty of tokens that continue a repetition (DRY). Default: 0: off.",
    )
    dry_base = StrictNumberField(
        required=False,
        min_value=1,
        max_value=10,
        allow_null=True,
        help_text="Multiplies the penalty for each token that a repetition is too long. Default: 1.75.",
    )
    dry_allowed_length = StrictIntegerField(
        required=False,
        min_value=1,
        max_value=limits.MAX_TOKENS_LIMIT,
        allow_null=True,
        help_text="Shorter repetitions aren't penalised. Default: 2.",
    )
    dry_penalty_last_n = StrictIntegerField(
        required=False,
        min_value=-1,
        max_value=limits.MAX_TOKENS_LIMIT,
        allow_null=True,
        help_text="Tokens that are searched for repetitions. Default: -1: all; 0: off.",
    )
    dry_sequence_breakers = StrictListField(
        child=StrictCharField(max_length=limits.MAX_DRY_BREAKER_CHARS),
        max_length=limits.MAX_DRY_BREAKERS,
        required=False,
        allow_null=True,
        help_text='No repetition reaches across these texts. Default: a line break, ":", \'"\' and "*".',
    )
    xtc_probability = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="So often, all likely tokens but the least likely of them are excluded. Default: 0: off.",
    )
    xtc_threshold = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="A token of this probability is likely. Default: 0.1; above 0.5: off.",
    )


FURTHER_SAMPLERS = tuple(FurtherSamplersMixin().fields)
"""Names of these fields, the same in all APIs."""


class SamplingFieldsMixin(FurtherSamplersMixin, QueueFieldsMixin):
    """The sampling fields of all generation endpoints in OpenAI's shape."""

    temperature = StrictNumberField(
        required=False, min_value=0, max_value=2, allow_null=True, help_text="0: greedy. Default: 1."
    )
    top_p = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="Above 0: draw from the smallest set of tokens with this probability. Default: 1.",
    )
    stop = StopField(
        required=False,
        allow_null=True,
        help_text="The text ends before it: one text or at most 16, of 1 to 1,024 characters.",
    )
    presence_penalty = StrictNumberField(
        required=False,
        min_value=-2,
        max_value=2,
        allow_null=True,
        help_text="Subtracted once from the logits of tokens in the output. Default: 0.",
    )
    frequency_penalty = StrictNumberField(
        required=False,
        min_value=-2,
        max_value=2,
        allow_null=True,
        help_text="Subtracted per occurrence in the output. Default: 0.",
    )
    logit_bias = LogitBiasField(
        required=False, allow_null=True, help_text="At most 1,024 token ids to -100 … 100, added to the logits."
    )
    seed = StrictIntegerField(
        required=False,
        min_value=-limits.SEED_RANGE,
        max_value=limits.SEED_RANGE - 1,
        allow_null=True,
        help_text="Fixes the draws. Default: drawn by the server.",
    )
    # vLLM's additions.
    top_k = StrictIntegerField(
        required=False,
        min_value=-1,
        max_value=limits.MAX_TOKENS_LIMIT,
        allow_null=True,
        help_text="Keep the k most probable tokens. Default: 0; 0 and -1: off.",
    )
    min_p = StrictNumberField(
        required=False,
        min_value=0,
        max_value=1,
        allow_null=True,
        help_text="Keep tokens with at least this share of the highest probability. Default: 0.",
    )
    repetition_penalty = StrictNumberField(
        required=False,
        min_value=0,
        max_value=10,
        allow_null=True,
        help_text="Above 0: applied to tokens in prompt and output, as in vLLM. Default: 1.",
    )
    repeat_penalty = StrictNumberField(
        required=False,
        min_value=0,
        max_value=10,
        allow_null=True,
        help_text="llama.cpp's name of repetition_penalty; both may be given if they agree.",
    )
    min_tokens = StrictIntegerField(
        required=False,
        min_value=0,
        max_value=limits.MAX_TOKENS_LIMIT,
        allow_null=True,
        help_text="No end of sequence and no stop before so many tokens. Default: 0.",
    )
    stop_token_ids = TokenIdsField(
        required=False,
        max_length=limits.MAX_STOP_TOKEN_IDS,
        allow_null=True,
        help_text="At most 256 ids that end the text as well.",
    )
    ignore_eos = StrictBooleanField(
        required=False, allow_null=True, help_text="Continue after the end of sequence. Default: false."
    )
    skip_special_tokens = StrictBooleanField(
        required=False, allow_null=True, help_text="Leave control tokens out of the text. Default: true."
    )


def resolve_aliases(values: dict[str, Any]) -> None:
    """Rename aliases of parameters to the names of ``SamplingParams``, in place.

    Raises:
        InvalidRequest: Both names were given, with different values.
    """
    alias = values.pop("repeat_penalty", None)
    if alias is None:
        return
    known = values.setdefault("repetition_penalty", alias)
    if known != alias:
        raise InvalidRequest(
            f"repeat_penalty is {alias} and repetition_penalty is {known}; give one of them.", param="repeat_penalty"
        )
