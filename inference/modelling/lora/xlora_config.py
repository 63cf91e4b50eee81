"""XLoraConfig: what the configuration of an X-LoRA says: a mixture of LoRA adapters, weighted token by token.

Standard library only. The file is untrusted: every value is checked for type and range. Sources: PEFT's ``XLoraConfig``
(https://huggingface.co/docs/peft/package_reference/xlora), and the older xlora_config.json, which mistral.rs reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.lora.config import ConfigReader, base_name, is_neutral

MAX_ADAPTERS = 64
MAX_DEPTH = 16
MAX_WIDTH = 1 << 16

_IGNORED = frozenset({
    "auto_mapping", "base_model_id", "base_model_name_or_path", "device", "inference_mode", "peft_type",
    "peft_version", "revision", "task_type", "use_bias", "use_trainable_adapters", "xlora_dropout_p",
})  # fmt: skip
"""Keys that say how it was trained or where it is from; whether there are biases, the tensors say."""
_READ = frozenset({
    "adapters", "enable_relu_and_dropout", "enable_softmax", "enable_softmax_topk", "global_scaling_weight",
    "hidden_size", "layerwise_scalings", "scaling_pass_value", "softmax_temperature", "top_k_lora", "xlora_depth",
    "xlora_size",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class XLoraConfig:
    """An X-LoRA's configuration.

    Attributes:
        file: Name of the file that says so, for messages.
        hidden_size: h of the base.
        adapters: Name and path of each adapter, in the order of the classifier's outputs.
        depth: Matrices of the classifier.
        width: Values between them; not used with ``depth`` 1.
        has_relu: Values between them that are negative become 0.
        is_layerwise: The classifier scales each adapted module apart; otherwise all of them alike.
        has_softmax: The scalings of a token add up to 1, before all but ``top_k`` become 0.
        has_topk_softmax: Those that are left add up to 1.
        temperature: Divides what the softmax reads.
        top_k: As many adapters as a token goes through at most; None: all.
        pass_value: Scaling of all adapters in the pass that the classifier reads; 0: the base alone.
        weight: Factor of all scalings.
        base_model: Name of the base, for people.
    """

    file: str
    hidden_size: int
    adapters: tuple[tuple[str, str], ...]
    depth: int
    width: int
    has_relu: bool
    is_layerwise: bool
    has_softmax: bool
    has_topk_softmax: bool
    temperature: float
    top_k: int | None
    pass_value: float
    weight: float
    base_model: str

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], file: str, *, is_peft: bool) -> XLoraConfig:
        """Read and check the members of a file.

        Args:
            file: Its name.
            is_peft: PEFT has written it; the older form has no ReLU unless it says so.

        Raises:
            CorruptCheckpoint: A member has the wrong type or is out of range.
            UnsupportedFormat: A member changes the arithmetic in a way that isn't known.
        """
        for key, value in config.items():
            if key not in _READ and key not in _IGNORED and not is_neutral(value):
                raise UnsupportedFormat(
                    f"{file} has {key[:60]} = {str(value)[:60]!r}, which isn't known of X-LoRA; remove it if the "
                    "scalings don't depend on it.",
                    param=key[:60],
                )
        reader = ConfigReader(config, file)
        adapters = _adapters(config.get("adapters"), file)
        top_k = config.get("top_k_lora")
        if top_k is not None:
            top_k = reader.integer("top_k_lora", 1, len(adapters))
        pass_value = 1 / len(adapters)
        if config.get("scaling_pass_value", 0.0) is not None:
            pass_value = reader.number(config.get("scaling_pass_value", 0.0), "scaling_pass_value")
        temperature = reader.number(config.get("softmax_temperature", 1.0), "softmax_temperature")
        if temperature <= 0:
            raise CorruptCheckpoint(f"{file} has softmax_temperature = {temperature}; it must be more than 0.")
        return cls(
            file=file,
            hidden_size=reader.integer("hidden_size", 1, 1 << 20),
            adapters=adapters,
            depth=reader.integer("xlora_depth", 1, MAX_DEPTH, default=1),
            width=reader.integer("xlora_size", 1, MAX_WIDTH, default=2048),
            has_relu=is_peft or reader.flag("enable_relu_and_dropout"),
            is_layerwise=reader.flag("layerwise_scalings"),
            has_softmax=reader.flag("enable_softmax", default=True),
            has_topk_softmax=reader.flag("enable_softmax_topk"),
            temperature=temperature,
            top_k=top_k,
            pass_value=pass_value,
            weight=reader.number(config.get("global_scaling_weight", 1.0), "global_scaling_weight"),
            base_model=base_name(config, "base_model_name_or_path", "base_model_id"),
        )


@dataclass(frozen=True, slots=True)
class Ordering:
    """What an ordering file of mistral.rs says.

    Attributes:
        file: Its name.
        names: Of the adapters, in the order of the classifier's outputs; empty: as the configuration has them.
        layers: Number of each adapted module; empty: it isn't said.
    """

    file: str
    names: tuple[str, ...]
    layers: Mapping[str, int]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], file: str) -> Ordering:
        """Read and check a file.

        Raises:
            CorruptCheckpoint: A member has the wrong type, or the numbers aren't those from 0 on.
        """
        reader = ConfigReader(content, file)
        layers = content.get("layers") or {}
        is_valid = isinstance(layers, dict) and all(
            isinstance(value, int) and not isinstance(value, bool) for value in layers.values()
        )
        if not is_valid or sorted(layers.values()) != list(range(len(layers))):
            raise CorruptCheckpoint(
                f"{file} has layers that don't have the numbers from 0 on, each once; number them so.",
                param="layers",
            )
        return cls(file, reader.names("order"), layers)


def _adapters(given: Any, file: str) -> tuple[tuple[str, str], ...]:
    """The adapters of a configuration: a list of names, or an object of names and paths."""
    found = {name: name for name in given if isinstance(name, str)} if isinstance(given, list) else given
    is_valid = isinstance(found, dict) and all(isinstance(path, str) for path in found.values())
    if not is_valid or len(found) != len(given) or not 1 <= len(found) <= MAX_ADAPTERS:
        raise CorruptCheckpoint(
            f"{file} has adapters = {str(given)[:60]!r}; it must name 1 to {MAX_ADAPTERS} adapters.", param="adapters"
        )
    return tuple((name[:200], path[:1000]) for name, path in found.items())
