"""Copy between host and device without needless waits, and recognise an allocation that failed.

A copy from ordinary (pageable) memory makes the host wait until everything that the device has been given before is
done; one from pinned memory is queued behind it. And each value that is read back waits, so a step reads once.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the thread's current one: kernels, streams and graphs go to that, wherever the tensors lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def choose_attention() -> None:
    """Leave cuDNN's attention out of PyTorch's choice: it makes a plan for each length of a prompt, as others wait."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def return_device_memory() -> None:
    """Give what nobody holds any more back to the devices; PyTorch keeps it for itself otherwise."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()  # an engine's parts know each other
        torch.cuda.empty_cache()


def is_memory_error(error: BaseException) -> bool:
    """Whether an allocation failed; torch's CPU allocator says so only in words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on the device. On the CPU it may be the same memory.

    The pinned copy is the allocator's, which doesn't give it away before the device has read it.
    """
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True) if host.numel() else torch.empty_like(host, device=device)


def upload_ids(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Whole numbers as (n,) int64 on the device."""
    return upload(np.array(values, dtype=np.int64), device)


def fetch(*tensors: torch.Tensor) -> tuple[list[Any], ...]:
    """``tolist`` of each tensor, all in one wait.

    Args:
        tensors: On one device; floats, or whole numbers below 2^53.
    """
    if len(tensors) == 1 or tensors[0].device.type == "cpu":
        return tuple(tensor.tolist() for tensor in tensors)
    return fetch_together(tensors)


def fetch_together(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...]:
    """``fetch`` where there is something to wait for: as one tensor of float64, which holds all of them exactly."""
    flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).cpu().numpy()
    parts = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return tuple(
        (part if tensor.dtype.is_floating_point else part.astype(np.int64)).reshape(tensor.shape).tolist()
        for part, tensor in zip(parts, tensors, strict=True)
    )
