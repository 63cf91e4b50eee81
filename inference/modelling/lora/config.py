"""LoraConfig: what an adapter_config.json of PEFT says; keys that change the arithmetic unknown to us are refused.

Standard library only. The file is untrusted: every value is checked for type and range. Source of the keys' meanings:
https://huggingface.co/docs/peft/package_reference/lora.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from inference.errors import CorruptCheckpoint, UnsupportedFormat

CONFIG_FILE = "adapter_config.json"
MAX_RANK = 256
MAX_MODULES = 4096
MAX_PATTERN_CHARS = 300
MAX_QUANTIFIERS = 2
MAX_ALTERNATIVES = 8
"""A pattern is a regular expression of the file. With few quantifiers, none of them over a group, and few alternatives
unless they are in one group, matching a name of some hundred characters ends soon whatever the pattern is."""

_IGNORED = frozenset({
    "arrow_config_version", "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "lora_ga_config", "loftq_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type", "velora_config",
})  # fmt: skip
"""Keys that say how the adapter was trained, where it is from, or which modules PEFT wraps: the tensors say that."""
_READ = frozenset({
    "alpha_pattern", "bias", "fan_in_fan_out", "init_lora_weights", "lora_alpha", "lora_bias", "modules_to_save",
    "peft_type", "r", "rank_pattern", "target_modules", "target_parameters", "use_dora", "use_rslora",
})  # fmt: skip
_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of ``init_lora_weights`` with which the base is left as it is; pissa, olora, corda and others change it."""
_REMEDIES = {
    "trainable_token_indices": "merge the adapter into its base with PEFT (merge_and_unload) and serve the result",
    "init_lora_weights": "save it with path_initial_model_for_weight_conversion, which makes it a plain LoRA",
}
_REMEDY = "merge the adapter into its base with PEFT (merge_and_unload), or train it without that"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """An adapter's configuration.

    Attributes:
        rank: Of its matrices, unless ``rank_pattern`` says otherwise.
        alpha: Numerator of the scale, unless ``alpha_pattern`` says otherwise.
        rank_pattern, alpha_pattern: Regular expressions of module names to their values.
        is_rank_stabilised: The scale is α / √r (rsLoRA) instead of α / r.
        is_dora: Each output has a learned magnitude (DoRA).
        has_lora_bias: B has a bias of its own.
        bias: Which biases of the base the adapter replaces.
        fan_in_fan_out: The base stores its matrices (in, out).
        target_modules: Names or one regular expression, as PEFT was told.
        target_parameters: Names of stacked parameters, those of experts, in PEFT's order.
        modules_to_save: Modules that the adapter holds whole.
        excludes_modules: Some modules that ``target_modules`` names were left out.
        base_model: Name of the base, for people.
    """

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    is_rank_stabilised: bool
    is_dora: bool
    has_lora_bias: bool
    bias: Literal["none", "all", "lora_only"]
    fan_in_fan_out: bool
    target_modules: tuple[str, ...] | str
    target_parameters: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    excludes_modules: bool
    base_model: str

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LoraConfig:
        """Read and check the members of the file.

        Raises:
            CorruptCheckpoint: A member has the wrong type or is out of range.
            UnsupportedFormat: It is no LoRA adapter, or a member changes the arithmetic in a way that isn't known.
        """
        kind = config.get("peft_type", "LORA")
        if kind == "XLORA":
            raise UnsupportedFormat(
                f"{CONFIG_FILE} is that of an X-LoRA, which weighs its adapters token by token: it can neither be "
                "merged nor be a part of another one; merge one of the adapters in it.",
                param="peft_type",
            )
        if kind != "LORA":
            raise UnsupportedFormat(
                f"{CONFIG_FILE} says peft_type {str(kind)[:40]!r}; only LORA and XLORA can be served: {_REMEDY}.",
                param="peft_type",
            )
        for key, value in config.items():
            _check_key(key, value)
        reader = ConfigReader(config, CONFIG_FILE)
        bias = reader.text("bias", "none")
        if bias not in ("none", "all", "lora_only"):
            raise reader.corrupt("bias", bias, "none, all or lora_only")
        targets = config.get("target_modules")
        return cls(
            rank=reader.rank(config.get("r", 8), "r"),
            alpha=reader.number(config.get("lora_alpha", 8), "lora_alpha"),
            rank_pattern={key: reader.rank(value, "rank_pattern") for key, value in reader.pattern("rank_pattern")},
            alpha_pattern={
                key: reader.number(value, "alpha_pattern") for key, value in reader.pattern("alpha_pattern")
            },
            is_rank_stabilised=reader.flag("use_rslora"),
            is_dora=reader.flag("use_dora"),
            has_lora_bias=reader.flag("lora_bias"),
            bias=cast('Literal["none", "all", "lora_only"]', bias),
            fan_in_fan_out=reader.flag("fan_in_fan_out"),
            target_modules=targets[:MAX_PATTERN_CHARS] if isinstance(targets, str) else reader.names("target_modules"),
            target_parameters=reader.names("target_parameters"),
            modules_to_save=reader.names("modules_to_save"),
            excludes_modules=any(config.get(key) for key in ("exclude_modules", "layers_to_transform")),
            base_model=base_name(config, "base_model_name_or_path"),
        )

    def rank_of(self, module: str) -> int:
        """The rank that a module should have."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        """The factor of a module's B A."""
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.is_rank_stabilised else alpha / rank


def _by_pattern(pattern: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first expression that matches the end of a module's name, as PEFT looks for it."""
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _check_key(key: str, value: Any) -> None:
    if key == "init_lora_weights":
        if isinstance(value, str) and value.lower().startswith("true"):
            return
        if not any(value is plain or value == plain for plain in _PLAIN_INITS):
            raise _refused(key, value)
    elif key not in _READ and key not in _IGNORED and not is_neutral(value):
        raise _refused(key, value)


def base_name(config: Mapping[str, Any], *keys: str) -> str:
    """The base's name under the first of ``keys`` that has one, on one line; empty: none has."""
    found = next((str(config[key]) for key in keys if config.get(key)), "")
    return "".join(char for char in found[:200] if char.isprintable())


def is_neutral(value: Any) -> bool:
    """Whether a member of a configuration says nothing, whatever its name is."""
    return value is None or value is False or value in ({}, [])


def _refused(key: str, value: Any) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{CONFIG_FILE} has {key[:60]} = {str(value)[:60]!r}, which changes what the adapter computes and isn't "
        f"supported; {_REMEDIES.get(key, _REMEDY)}.",
        param=key[:60],
    )


class ConfigReader:
    """Members of a configuration by type.

    Args:
        file: Its name, for messages.
    """

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self._config, self._file = config, file

    def corrupt(self, name: str, value: Any, expected: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{self._file} has {name} = {str(value)[:60]!r}; it must be {expected}.", param=name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._config.get(name)
        if value not in (None, True, False) or not isinstance(value, bool | None):
            raise self.corrupt(name, value, "true or false")
        return default if value is None else value

    def integer(self, name: str, least: int, most: int, *, default: int | None = None) -> int:
        value = self._config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.corrupt(name, value, f"a number from {least} to {most}")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._config.get(name)
        if value is not None and not isinstance(value, str):
            raise self.corrupt(name, value, "a string")
        return default if value is None else value

    def rank(self, value: Any, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
            raise self.corrupt(name, value, f"a rank from 1 to {MAX_RANK}")
        return value

    def number(self, value: Any, name: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e6:
            raise self.corrupt(name, value, "a number of at most 1e6")
        return float(value)

    def names(self, name: str) -> tuple[str, ...]:
        value = self._config.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value[:MAX_PATTERN_CHARS],)
        if not isinstance(value, list) or len(value) > MAX_MODULES or not all(isinstance(one, str) for one in value):
            raise self.corrupt(name, value, f"a list of at most {MAX_MODULES} names")
        return tuple(value)

    def pattern(self, name: str) -> list[tuple[str, Any]]:
        value = self._config.get(name) or {}
        if not isinstance(value, dict) or len(value) > MAX_MODULES:
            raise self.corrupt(name, value, f"an object of at most {MAX_MODULES} members")
        for key in value:
            plain = re.sub(r"\\.", "x", key, flags=re.DOTALL)  # without escaped characters
            quantifiers = len(re.findall(r"[*+?{]", plain))
            try:
                re.compile(key)
            except (re.error, RecursionError, OverflowError):
                raise self.corrupt(name, key, "a valid regular expression") from None
            has_many = plain.count("|") > MAX_ALTERNATIVES and plain.count("(") > 1
            if (
                len(key) > MAX_PATTERN_CHARS
                or has_many
                or quantifiers > MAX_QUANTIFIERS
                or re.search(r"\)[*+{]", plain)
            ):
                raise self.corrupt(
                    name,
                    key,
                    f"a name, or an expression with at most {MAX_QUANTIFIERS} quantifiers and, in several groups, "
                    f"{MAX_ALTERNATIVES} bars",
                )
        return list(value.items())
