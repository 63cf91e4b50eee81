"""Where Triton kernels run: the one question that layers ask before they take their device path.

Decided by the tensor's device and by whether triton is installed, never by trying. Modules of
``inference.modelling.backends.triton`` are imported behind this question only, so that nothing else needs triton.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

PRESENT = find_spec("triton") is not None
"""Whether triton is installed. torch's builds for CUDA bring it along; those for a CPU don't."""

INTERPRETED = PRESENT and os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch for debugging: its kernels then run on the CPU, statement by statement in numpy. With it the
layers take their device path on CPU tensors too, which is how that path is tested without a device."""


PRODUCT_ROWS = (1, 16, 64)
"""Up to how many rows each kernel for products with quantised weights is used; beyond them, the library's product."""


def use_triton(values: torch.Tensor) -> bool:
    """Whether the kernels compute what is done with this tensor."""
    return (PRESENT and values.is_cuda) or INTERPRETED
