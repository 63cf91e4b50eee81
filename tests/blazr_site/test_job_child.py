"""Where a job's child computes, and in which format; ``test_quantise_child`` has its lines and its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blazr_site import job_child
from blazr_site.job_child import device_and_dtype
from inference.errors import InvalidRequest

HALF = 1000
"""Bytes that the job takes in bfloat16."""


def needed(dtype: torch.dtype) -> int:
    return HALF * dtype.itemsize // 2


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ({"cuda:0": 1 << 40, "cpu": 1 << 40}, ("cuda:0", "float32")),
        ({"cuda:0": 0, "cpu": 1 << 40}, ("cpu", "float32")),
        ({"cuda:0": HALF, "cpu": 0}, ("cuda:0", "bfloat16")),
        ({"cuda:0": 0, "cpu": HALF}, ("cpu", "bfloat16")),
    ],
)
def test_the_format_comes_before_the_device(
    free: dict[str, Any], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_child, "free_memory_bytes", free.__getitem__)
    monkeypatch.setattr(job_child, "choose_device", lambda force_cpu: "cpu" if force_cpu else "cuda:0")
    assert device_and_dtype("auto", needed, "wait") == expected


def test_too_little_memory_is_said_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "free_memory_bytes", lambda where: 1 << 20)
    with pytest.raises(InvalidRequest, match=r"takes 2\.0 GiB of memory, cpu has 1\.0 MiB free; unload models\."):
        device_and_dtype("cpu", lambda dtype: dtype.itemsize << 30, "unload models")
