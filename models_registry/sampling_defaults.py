"""Read the sampling parameters that a checkpoint's own ``generation_config.json`` recommends."""

from __future__ import annotations

import math
from pathlib import Path

from inference.errors import CorruptCheckpoint
from models_registry.detection.json_file import read_object

FILE = "generation_config.json"
_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.01, 1.0),
    "top_k": (0.0, 1e6),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
"""Names that Hugging Face and this server share, and what the server takes."""


def sampling_defaults(directory: Path) -> dict[str, float]:
    """Return recommended parameters by name; none where there is no file, or for values that aren't usable.

    ``do_sample: false`` recommends greedy decoding, which is temperature 0.
    """
    try:
        stated = read_object(directory / FILE)
    except CorruptCheckpoint:
        return {}
    found = {}
    for name, (low, high) in _RANGES.items():
        value = stated.get(name)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and low <= value <= high
        ):
            found[name] = float(value) if value % 1 else int(value)
    if stated.get("do_sample") is False:
        return {"temperature": 0} | {name: value for name, value in found.items() if name == "repetition_penalty"}
    return found
