"""Sum up the values of a weight that the files hold in codes, as the child process of ``tensor_values``.

The loader's readers need torch, which ``models_registry`` may not import; so this module is beside the registry.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from blazr_site.job_child import run
from inference.engine.device import is_memory_error
from inference.errors import InvalidRequest
from inference.host.units import format_bytes
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.spec_json import decode
from inference.modelling.weights.files import TensorFiles
from models_registry.tensor_numbers import Array, pieces, statistics

CPU_S = 120
MEMORY_BYTES = 4 << 30
"""Limit of the memory that this process allocates."""
MAX_PART_BYTES = 1 << 30
"""Limit of a weight's codes, scales and zero points, read whole; GGUF's blocks are read piece by piece."""
MAX_DECODED_VALUES = 1 << 26
"""Limit of the values that are decoded; a larger weight is read at evenly spaced places."""


class DecodedWeight:
    """The decoded values of a weight, read piece by piece.

    Attributes:
        count: Number of the weight's values, read or not.
    """

    def __init__(self, files: TensorFiles, name: str) -> None:
        self._files, self._name = files, name
        self.count = math.prod(files.shape_of(name))

    def values(self, max_values: int) -> Iterator[Array]:
        """Yield the decoded values of each piece, as float64; about ``max_values`` in all."""
        for first, number in pieces(self.count, max_values):
            yield self._files.read_values(self._name, first, number).double().numpy()


def summarise(
    *, paths: Sequence[str], name: str, encoded: Mapping[str, Any] | None, progress: object = None
) -> dict[str, Any]:
    """Return the statistics of a weight's decoded values, as ``tensor_numbers.statistics``.

    Args:
        paths: The files: those of all parts, or all parts of a GGUF file.
        name: The weight, as the checkpoint had it before quantisation.
        encoded: How its values follow from its parts (``EncodedTensor``); None: the file's header says it (GGUF).

    Raises:
        InvalidRequest: It takes too much memory.
        CheckpointError: A file is broken.
    """
    items: list[EncodedTensor] = [] if encoded is None else [decode(encoded, {"EncodedTensor": EncodedTensor})]
    with TensorFiles([Path(path) for path in paths], encoded=items) as files:
        size = sum(files.size_of(part) for item in items for part in item.parts.values())
        if size > MAX_PART_BYTES:
            raise InvalidRequest(
                f"the codes of {name} take {format_bytes(size)}; at most {format_bytes(MAX_PART_BYTES)} are decoded "
                "for figures.",
                param="tensor",
            )
        try:
            return statistics(DecodedWeight(files, name), MAX_DECODED_VALUES)
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error):
                raise
            raise InvalidRequest(f"decoding {name} takes too much memory.", param="tensor") from None


def main() -> None:
    """Run one request, on one processor."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    run(summarise)


if __name__ == "__main__":
    main()
