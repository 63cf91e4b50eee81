"""Map each ``model_type`` to the family that reads it, imported on first use.

A family is one module in ``inference.modelling.families`` with

    def build_spec(view: CheckpointView) -> ModelSpec

A new family is such a module, one row here, and a table of its config keys (``config_key_tables``). Standard library
only, and so are the families.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import CONFIG_KEYS
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.spec import ModelSpec

BuildSpec = Callable[[CheckpointView], ModelSpec]

FAMILIES: dict[str, str] = {
    "oxidizr": "oxidizr",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "qwen2_moe": "qwen_moe",
    "qwen3_moe": "qwen_moe",
    "mixtral": "mixtral",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba2",
    "bamba": "bamba",
    "granitemoehybrid": "granitemoehybrid",
    "nemotron_h": "nemotron_h",
    "jamba": "jamba",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "qwen3_next": "qwen3_next",
    "qwen3_5": "qwen3_next",
    "qwen3_5_moe": "qwen3_next",
    "qwen3_5_text": "qwen3_next",
    "qwen3_5_moe_text": "qwen3_next",
}
"""``model_type`` to the module's name in ``inference.modelling.families``."""


def family_builder(model_type: str) -> BuildSpec:
    """The function that checks the keys of a checkpoint's config.json and turns it into a ``ModelSpec``.

    Raises:
        UnsupportedArchitecture: No family is registered for it.
    """
    module = FAMILIES.get(model_type)
    if module is None:
        raise UnsupportedArchitecture(
            f"model_type {model_type[:60]!r} is not supported; supported are {', '.join(sorted(FAMILIES))}.",
            param="model_type",
        )
    builder: BuildSpec = import_module(f"inference.modelling.families.{module}").build_spec

    def build_spec(view: CheckpointView) -> ModelSpec:
        check_config_keys(view, model_type, CONFIG_KEYS[model_type])
        return builder(view)

    return build_spec
