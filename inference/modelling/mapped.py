"""Tensors in memory of their own, outside of the allocator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inference.host.machine import zeroed_memory

LEAST_BYTES = 2 << 20
"""Smaller ones would not have a huge page to themselves."""


def mapped_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU that take memory as they are written (``zeroed_memory``), if they are large.

    Raises:
        MemoryError: More than the system promises.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < LEAST_BYTES:
        return torch.zeros(tuple(shape), dtype=dtype)
    return torch.frombuffer(zeroed_memory(num_bytes), dtype=dtype).view(tuple(shape))
