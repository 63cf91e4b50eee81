"""SamplingParams: what a request asks of the sampler, checked in one place.

Every range is closed and every number finite; the API edge and the engine door both call this
class, so that no value reaches a tensor unchecked. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from inference.errors import InvalidSamplingParams, shown
from inference.values.grammar import Grammar

MAX_GRAMMAR_AFTER_CHARS = 256
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_DRY_BREAKERS = 64
MAX_DRY_BREAKER_CHARS = 40
MAX_CHOICES = 128
MAX_TOKENS_LIMIT = 1 << 24
SEED_RANGE = 1 << 63
GREEDY_BELOW = 1e-5
"""Temperatures below this value are greedy, as in vLLM."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens of one request are chosen. Defaults are OpenAI's.

    Attributes:
        max_tokens: Most tokens to generate; None: up to the model's context. 0 only scores the prompt.
        min_tokens: End-of-sequence and stop strings are ignored before this many tokens.
        temperature: Logits are divided by it; below ``GREEDY_BELOW`` the argmax is chosen. Range 0 to 2.
        top_p: Nucleus: keep the smallest set of tokens whose probabilities sum to at least this. (0, 1].
        top_k: Keep the k most probable tokens; 0 keeps all.
        min_p: Keep tokens of at least this share of the highest probability. 0 to 1.
        repetition_penalty: Divides positive (multiplies negative) logits of tokens seen in prompt or
            output. (0, 10]; 1 is off. Source: Keskar et al. 2019, https://arxiv.org/abs/1909.05858.
        presence_penalty: Subtracted once from tokens seen in the output. -2 to 2.
        frequency_penalty: Subtracted per occurrence in the output. -2 to 2.
        logit_bias: Token id to an addition to its logit, -100 to 100.
        typical_p: Keep the tokens whose surprise is nearest to the expected one, up to this probability. 0 to 1; 0 and
            1 are off.
        top_n_sigma: Keep logits within so many standard deviations below the maximum. 0 and below are off.
        dynatemp_range: The temperature lies up to this below or above ``temperature``, by the entropy. 0 is off.
        dynatemp_exponent: How the temperature follows the entropy: its share of the highest entropy to this power.
        mirostat: 1 or 2: keep the surprise of the tokens near ``mirostat_tau``; 0 is off.
        mirostat_tau: Wanted surprise, in bits.
        mirostat_eta: How fast it is reached. 0 to 1.
        dry_multiplier: Strength of the penalty for tokens that continue a repetition; 0 is off.
        dry_base: The penalty is multiplied by this for each token that a repetition is longer than allowed.
        dry_allowed_length: Repetitions of fewer tokens aren't penalised.
        dry_penalty_last_n: Tokens that are searched for repetitions; -1: all, 0: off.
        dry_sequence_breakers: Texts over which no repetition reaches.
        xtc_probability: How often all but the least probable of several probable tokens are excluded. 0 to 1; 0 is off.
        xtc_threshold: Tokens of at least this probability are probable; above 0.5 there can't be two.
        stop: Strings that end the text; they aren't part of it.
        stop_token_ids: Ids that end it as well.
        ignore_eos: Go on after end-of-sequence.
        seed: Fixes the draws; None lets the server pick one per request.
        logprobs: Return the log-probability of each chosen token and of this many alternatives; None: off.
        prompt_logprobs: The same for the prompt's tokens; None: off.
        n: Number of choices.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop_str_in_output: Keep the stop string in the text.
        grammar: What the output has to be. ``length``, a stop string or a stop token may cut it short.
        grammar_after: The grammar begins behind the first occurrence of this text in the output (the end of a thinking
            section); what comes before is free, but the output can't end there. None: at once.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    grammar: Grammar | None = None
    grammar_after: str | None = None

    def __post_init__(self) -> None:
        self._take_lists()
        for name, check in _CHECKS.items():
            # By identity: values that were left at their default are nearly all of them, and right.
            if getattr(self, name) is not _DEFAULTS[name]:
                check(name, getattr(self, name))
        self._check_collections()
        self._check_grammar()
        if self.mirostat:
            self._check_mirostat()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidSamplingParams(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}; lower it.",
                param="min_tokens",
            )

    def _take_lists(self) -> None:
        """Make tuples of lists, and of a single stop string, as programs write them."""
        for name in ("stop", "stop_token_ids", "dry_sequence_breakers"):
            value: Any = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, str) and name == "stop":
                object.__setattr__(self, name, (value,))

    def _check_collections(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(item, str) for item in self.stop):
            raise InvalidSamplingParams(
                f"stop must be a string or a list of strings, got {shown(self.stop)}.", param="stop"
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidSamplingParams(
                f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS} are allowed.", param="stop"
            )
        for item in self.stop:
            if not item or len(item) > MAX_STOP_STRING_CHARS:
                raise InvalidSamplingParams(
                    f"each stop string needs 1 to {MAX_STOP_STRING_CHARS} characters, got {len(item)}.", param="stop"
                )
        if not isinstance(self.stop_token_ids, tuple) or len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidSamplingParams(
                f"stop_token_ids must be a list of at most {MAX_STOP_TOKEN_IDS} token ids.", param="stop_token_ids"
            )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_TOKENS_LIMIT)
        if not isinstance(self.logit_bias, Mapping) or len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidSamplingParams(
                f"logit_bias must map at most {MAX_LOGIT_BIAS} token ids to numbers.", param="logit_bias"
            )
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, MAX_TOKENS_LIMIT)
            _check_number("logit_bias", bias, -100.0, 100.0)
        if self.dry_sequence_breakers is not _DEFAULTS["dry_sequence_breakers"]:
            self._check_dry_sequence_breakers()

    def _check_dry_sequence_breakers(self) -> None:
        name, texts = "dry_sequence_breakers", self.dry_sequence_breakers
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            raise InvalidSamplingParams(f"{name} must be a list of strings, got {shown(texts)}.", param=name)
        if len(texts) > MAX_DRY_BREAKERS:
            raise InvalidSamplingParams(
                f"{name} has {len(texts)} strings, at most {MAX_DRY_BREAKERS} are allowed.", param=name
            )
        for text in texts:
            if not 1 <= len(text) <= MAX_DRY_BREAKER_CHARS:
                raise InvalidSamplingParams(
                    f"each string of {name} needs 1 to {MAX_DRY_BREAKER_CHARS} characters, got {len(text)}.", param=name
                )

    def _check_mirostat(self) -> None:
        """Mirostat decides by itself how many tokens are kept."""
        for name in _TRUNCATIONS:
            if getattr(self, name) != _DEFAULTS[name]:
                raise InvalidSamplingParams(
                    f"{name} is {shown(getattr(self, name))}, but mirostat {self.mirostat} chooses by itself which "
                    f"tokens are kept; leave {name} out, or set mirostat to 0.",
                    param=name,
                )

    def _check_grammar(self) -> None:
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidSamplingParams(f"grammar must be a Grammar, got {shown(self.grammar)}.", param="grammar")
        if self.grammar_after is None:
            return
        if not isinstance(self.grammar_after, str) or not 1 <= len(self.grammar_after) <= MAX_GRAMMAR_AFTER_CHARS:
            raise InvalidSamplingParams(
                f"grammar_after must be a string of 1 to {MAX_GRAMMAR_AFTER_CHARS} characters, "
                f"got {shown(self.grammar_after)}.",
                param="grammar_after",
            )
        if self.grammar is None:
            raise InvalidSamplingParams("grammar_after needs a grammar.", param="grammar_after")

    @property
    def uses_chain(self) -> bool:
        """Whether a draw needs one of the samplers beyond temperature, top_k, top_p and min_p."""
        return (
            0.0 < self.typical_p < 1.0
            or self.top_n_sigma > 0.0
            or self.dynatemp_range > 0.0
            or self.mirostat > 0
            or self.xtc_probability > 0.0
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax is chosen, without a draw."""
        return self.temperature < GREEDY_BELOW

    def to_dict(self) -> dict[str, Any]:
        """A JSON form; only the members that differ from their default."""
        values = {name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default}
        if self.logit_bias:
            values["logit_bias"] = {str(key): value for key, value in self.logit_bias.items()}
        if self.grammar is not None:
            values["grammar"] = self.grammar.to_dict()
        return values

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> SamplingParams:
        """Read ``to_dict``'s form (or a request's plain values); unknown members are refused by name.

        Raises:
            InvalidSamplingParams: A value is out of range, of the wrong type, or unknown.
        """
        values = dict(payload)
        for name in values:
            if name not in _DEFAULTS:
                raise InvalidSamplingParams(f"{name} is not a sampling parameter.", param=name)
        if "stop" in values:
            values["stop"] = _as_strings(values["stop"])
        if "stop_token_ids" in values:
            values["stop_token_ids"] = _as_tuple("stop_token_ids", values["stop_token_ids"])
        if "dry_sequence_breakers" in values:
            values["dry_sequence_breakers"] = _as_tuple("dry_sequence_breakers", values["dry_sequence_breakers"])
        if "logit_bias" in values:
            values["logit_bias"] = _as_bias(values["logit_bias"])
        if values.get("grammar") is not None:
            values["grammar"] = Grammar.from_dict(values["grammar"])
        return cls(**values)


def _as_strings(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return _as_tuple("stop", value)


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidSamplingParams(f"{name} must be a list, got {shown(value)}.", param=name)
    return tuple(value)


def _as_bias(value: Any) -> dict[int, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSamplingParams("logit_bias must map token ids to numbers.", param="logit_bias")
    bias: dict[int, Any] = {}
    for key, number in value.items():
        try:
            bias[int(str(key))] = number
        except ValueError:
            raise InvalidSamplingParams(
                f"logit_bias has the key {shown(key)}, which is not a token id.", param="logit_bias"
            ) from None
    return bias


def _check_int(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSamplingParams(f"{name} must be an integer, got {shown(value)}.", param=name)
    if not low <= value <= high:
        raise InvalidSamplingParams(f"{name} is {shown(value)}, it must be from {low} to {high}.", param=name)


def _check_number(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSamplingParams(f"{name} must be a number, got {shown(value)}.", param=name)
    if (
        (isinstance(value, float) and not math.isfinite(value))
        or not low <= value <= high
        or (low_open and value <= low)
    ):
        border = "above" if low_open else "from"
        raise InvalidSamplingParams(f"{name} is {shown(value)}, it must be {border} {low:g} to {high:g}.", param=name)


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidSamplingParams(f"{name} must be true or false, got {shown(value)}.", param=name)


_CHECKS: Mapping[str, Callable[[str, object], None]] = {
    "max_tokens": partial(_check_int, low=0, high=MAX_TOKENS_LIMIT, optional=True),
    "min_tokens": partial(_check_int, low=0, high=MAX_TOKENS_LIMIT),
    "temperature": partial(_check_number, low=0.0, high=2.0),
    "top_p": partial(_check_number, low=0.0, high=1.0, low_open=True),
    "top_k": partial(_check_int, low=0, high=MAX_TOKENS_LIMIT),
    "min_p": partial(_check_number, low=0.0, high=1.0),
    "repetition_penalty": partial(_check_number, low=0.0, high=10.0, low_open=True),
    "presence_penalty": partial(_check_number, low=-2.0, high=2.0),
    "frequency_penalty": partial(_check_number, low=-2.0, high=2.0),
    "typical_p": partial(_check_number, low=0.0, high=1.0),
    "top_n_sigma": partial(_check_number, low=-1.0, high=100.0),
    "dynatemp_range": partial(_check_number, low=0.0, high=2.0),
    "dynatemp_exponent": partial(_check_number, low=0.0, high=10.0),
    "mirostat": partial(_check_int, low=0, high=2),
    "mirostat_tau": partial(_check_number, low=0.0, high=100.0),
    "mirostat_eta": partial(_check_number, low=0.0, high=1.0),
    "dry_multiplier": partial(_check_number, low=0.0, high=100.0),
    "dry_base": partial(_check_number, low=1.0, high=10.0),
    "dry_allowed_length": partial(_check_int, low=1, high=MAX_TOKENS_LIMIT),
    "dry_penalty_last_n": partial(_check_int, low=-1, high=MAX_TOKENS_LIMIT),
    "xtc_probability": partial(_check_number, low=0.0, high=1.0),
    "xtc_threshold": partial(_check_number, low=0.0, high=1.0),
    "seed": partial(_check_int, low=-SEED_RANGE, high=SEED_RANGE - 1, optional=True),
    "logprobs": partial(_check_int, low=0, high=MAX_LOGPROBS, optional=True),
    "prompt_logprobs": partial(_check_int, low=0, high=MAX_LOGPROBS, optional=True),
    "n": partial(_check_int, low=1, high=MAX_CHOICES),
    "ignore_eos": _check_switch,
    "skip_special_tokens": _check_switch,
    "include_stop_str_in_output": _check_switch,
}
"""Members with a range of their own; the others' rules are methods."""

_TRUNCATIONS = (
    "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "dynatemp_range",
)  # fmt: skip
"""What doesn't go together with mirostat."""

_DEFAULTS: Mapping[str, Any] = {
    item.name: {} if item.name == "logit_bias" else item.default for item in fields(SamplingParams)
}
