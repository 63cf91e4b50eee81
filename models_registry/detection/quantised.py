"""Read what a checkpoint's files say of its quantisation, and the tensors that it had before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.quantisation_config import (
    CONFIG_KEYS,
    SIDE_FILES,
    QuantisationConfig,
    read_quantisation_config,
)
from inference.modelling.encodings.table import DecodedTable, decode_table
from inference.modelling.families.config import CheckpointConfig, Facts, TensorInfo
from inference.modelling.quantisation import stored_form
from models_registry.detection.directory import CheckpointDirectory
from models_registry.detection.json_file import read_object
from models_registry.detection.stored_values import read_small


def decode_quantised(
    resolved: CheckpointDirectory, tensors: Mapping[str, TensorInfo], config: CheckpointConfig, facts: Facts
) -> DecodedTable:
    """Return the checkpoint's tensors as they were before they were quantised, and how the files hold them.

    Raises:
        CheckpointError: The method isn't read, or config and tensors contradict each other.
    """
    if resolved.is_gguf:  # its reader gives the values of its codes
        return DecodedTable(dict(tensors))
    table = decode_table(tensors, _stated(resolved, config), partial(read_small, resolved.directory), facts)
    _warn_of_expanded(table.encoded, facts)
    return table


def _warn_of_expanded(encoded: Sequence[EncodedTensor], facts: Facts) -> None:
    """Warn of weights that are expanded to floats, and state their size."""
    expanded = [item for item in encoded if item.coding != "blazr" and stored_form(item) is None]
    if expanded:
        weights = sum(math.prod(item.shape) for item in expanded)
        facts.warn(
            f"{len(expanded)} of {len(encoded)} quantised weights, such as {expanded[0].name[:80]}, are expanded while "
            f"they are loaded, because no kernel multiplies their codes: in bfloat16 they take "
            f"{weights * 2 / (1 << 20):,.0f} MiB. quant int8 or int4 makes them small again, at the cost of another "
            "rounding (blazr quality measures it)."
        )


def _stated(resolved: CheckpointDirectory, config: CheckpointConfig) -> QuantisationConfig | None:
    """What config.json says, else the first of the files beside it; None: nothing does."""
    value = config.get(*CONFIG_KEYS)
    if value is not None:
        return read_quantisation_config(value)
    for name in SIDE_FILES:
        path = resolved.find(name)
        if path is not None:
            return read_quantisation_config(read_object(path), name)
    return None
