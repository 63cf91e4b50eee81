"""Copy between host and device without needless waits, and recognise failed allocations.

A copy from pageable memory makes the host wait for all work queued on the device; a copy from pinned memory is queued
behind that work. Each read from the device waits too, so a step reads once.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_MEMORY_ERRORS = ("DefaultCPUAllocator", "std::bad_alloc", "no memory for")
"""Parts of the messages of torch's CPU allocator, of containers in C++, and of the native kernels."""


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the thread's current one, because kernels, streams and graphs use the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def choose_attention() -> None:
    """Disable cuDNN's attention in PyTorch, because it compiles a plan for each prompt length while requests wait."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def return_device_memory() -> None:
    """Return unused memory from PyTorch's allocator to the device."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()  # an engine's parts refer to each other
        torch.cuda.empty_cache()


def is_memory_error(error: BaseException) -> bool:
    """Whether ``error`` is a failed allocation; torch and C++ raise a RuntimeError, known by its message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_ERRORS)


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on the device; on the CPU the tensor may share the array's memory.

    PyTorch's allocator keeps the pinned copy until the device has read it.
    """
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True) if host.numel() else torch.empty_like(host, device=device)


def upload_ids(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return integers as an (n,) int64 tensor on the device."""
    return upload(np.array(values, dtype=np.int64), device)


def fetch(*tensors: torch.Tensor) -> tuple[list[Any], ...]:
    """Return ``tolist`` of each tensor, with one wait for all.

    Args:
        tensors: Tensors on one device, of floats or of integers below 2^53.
    """
    if tensors[0].device.type == "cpu":
        return tuple(tensor.tolist() for tensor in tensors)
    return fetch_together(tensors)


def fetch_together(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...]:
    """``fetch`` several tensors from a device as one float64 tensor, which represents all values exactly."""
    flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).cpu().numpy()
    parts = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return tuple(
        (part if tensor.dtype.is_floating_point else part.astype(np.int64)).reshape(tensor.shape).tolist()
        for part, tensor in zip(parts, tensors, strict=True)
    )
