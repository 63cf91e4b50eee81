"""Say from config.json alone whether a checkpoint could be served, before its weights are fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import CheckpointError
from inference.modelling.encodings.quantisation_config import CONFIG_KEYS, read_quantisation_config
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorTable
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.registry import config_keys
from models_registry.detection.architecture import detect_model_type
from models_registry.detection.printable import printable


def check_config(values: Mapping[str, Any]) -> str:
    """Return the model type that a checkpoint with this config.json is read as; empty: its tensors have to decide.

    Raises:
        CheckpointError: It would be refused, whatever its tensors are; says why.
    """
    config, facts = CheckpointConfig(values), Facts()
    if "model_type" not in config and "architectures" not in config:
        return ""
    try:
        if config.get("model_type") == "oxidizr":
            return "oxidizr"
        model_type, _ = detect_model_type((), "huggingface", config, facts)
        stated = config.get(*CONFIG_KEYS)
        if stated is not None:
            read_quantisation_config(stated)
        view = CheckpointView(CheckpointConfig({**values, "model_type": model_type}), TensorTable({}), facts)
        check_config_keys(view, model_type, config_keys(model_type))
    except RecursionError:
        raise CheckpointError("config.json is nested too deeply.", param="config.json") from None
    except CheckpointError as error:
        error.message = printable(error.message)
        raise
    return model_type
