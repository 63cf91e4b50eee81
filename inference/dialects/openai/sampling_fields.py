"""Define the request fields for sampling, priority and prefix caching."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.dialects.fields import (
    LogitBiasField,
    StopField,
    StrictCharField,
    StrictListField,
    TokenIdsField,
    optional,
    optional_boolean,
    optional_integer,
    optional_number,
)
from inference.errors import InvalidRequest
from inference.values import sampling_params as limits

MAX_PRIORITY = 100


class PriorityFieldMixin(serializers.Serializer[Any]):
    """The priority field of all requests that an engine queues."""

    priority = optional_integer(-MAX_PRIORITY, MAX_PRIORITY, "Lower goes first.")


class QueueFieldsMixin(PriorityFieldMixin):
    """The fields of requests with cached prompts."""

    cache_salt = optional(StrictCharField, "Prefixes are shared only under the same salt.", max_length=256)


class FurtherSamplersMixin(serializers.Serializer[Any]):
    """llama.cpp's further samplers, by llama.cpp's names; SamplingParams has the defaults."""

    typical_p = optional_number(
        0, 1, "Keep the tokens of nearly the expected surprise, up to this probability. Default: 1; 0, 1: off."
    )
    top_n_sigma = optional_number(
        -1, 100, "Keep logits within so many standard deviations of the greatest. Default: 0; 0, -1: off."
    )
    dynatemp_range = optional_number(
        0, 2, "The temperature lies up to this below or above temperature, by the entropy. Default: 0: off."
    )
    dynatemp_exponent = optional_number(0, 10, "The share of the greatest entropy goes to this power. Default: 1.")
    mirostat = optional_integer(
        0, 2, "Keep the surprise of the tokens near mirostat_tau, by version 1 or 2. Default: 0: off."
    )
    mirostat_tau = optional_number(0, 100, "Surprise in bits. Default: 5.")
    mirostat_eta = optional_number(0, 1, "How fast mirostat_tau is reached. Default: 0.1.")
    dry_multiplier = optional_number(0, 100, "Penalty of tokens that continue a repetition (DRY). Default: 0: off.")
    dry_base = optional_number(
        1, 10, "Multiplies the penalty for each token that a repetition is too long. Default: 1.75."
    )
    dry_allowed_length = optional_integer(
        1, limits.MAX_TOKENS_LIMIT, "Shorter repetitions aren't penalised. Default: 2."
    )
    dry_penalty_last_n = optional_integer(
        -1, limits.MAX_TOKENS_LIMIT, "Tokens that are searched for repetitions. Default: -1: all; 0: off."
    )
    dry_sequence_breakers = optional(
        StrictListField,
        'No repetition reaches across these texts. Default: a line break, ":", \'"\' and "*".',
        child=StrictCharField(max_length=limits.MAX_DRY_BREAKER_CHARS),
        max_length=limits.MAX_DRY_BREAKERS,
    )
    xtc_probability = optional_number(
        0, 1, "So often, all likely tokens but the least likely of them are excluded. Default: 0: off."
    )
    xtc_threshold = optional_number(0, 1, "A token of this probability is likely. Default: 0.1; above 0.5: off.")


FURTHER_SAMPLERS = tuple(FurtherSamplersMixin().fields)
"""Names of these fields, the same in all APIs."""


class SamplingFieldsMixin(FurtherSamplersMixin, QueueFieldsMixin):
    """The sampling fields of all generation endpoints in OpenAI's shape."""

    temperature = optional_number(0, 2, "0: greedy. Default: 1.")
    top_p = optional_number(0, 1, "Above 0: draw from the smallest set of tokens with this probability. Default: 1.")
    stop = optional(StopField, "The text ends before it: one text or at most 16, of 1 to 1,024 characters.")
    presence_penalty = optional_number(-2, 2, "Subtracted once from the logits of tokens in the output. Default: 0.")
    frequency_penalty = optional_number(-2, 2, "Subtracted per occurrence in the output. Default: 0.")
    logit_bias = optional(LogitBiasField, "At most 1,024 token ids to -100 … 100, added to the logits.")
    seed = optional_integer(-limits.SEED_RANGE, limits.SEED_RANGE - 1, "Fixes the draws. Default: drawn by the server.")
    # vLLM's additions.
    top_k = optional_integer(-1, limits.MAX_TOKENS_LIMIT, "Keep the k most probable tokens. Default: 0; 0 and -1: off.")
    min_p = optional_number(0, 1, "Keep tokens with at least this share of the highest probability. Default: 0.")
    repetition_penalty = optional_number(
        0, 10, "Above 0: applied to tokens in prompt and output, as in vLLM. Default: 1."
    )
    repeat_penalty = optional_number(0, 10, "llama.cpp's name of repetition_penalty; both may be given if they agree.")
    min_tokens = optional_integer(
        0, limits.MAX_TOKENS_LIMIT, "No end of sequence and no stop before so many tokens. Default: 0."
    )
    stop_token_ids = optional(
        TokenIdsField, "At most 256 ids that end the text as well.", max_length=limits.MAX_STOP_TOKEN_IDS
    )
    ignore_eos = optional_boolean("Continue after the end of sequence. Default: false.")
    skip_special_tokens = optional_boolean("Leave control tokens out of the text. Default: true.")


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
