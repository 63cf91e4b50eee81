"""Settings of a worker's device, models and requests."""

from __future__ import annotations

import os
import re
from typing import Any

from blazr_site.process_environment import process_options
from blazr_site.settings import read

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def _devices(value: Any) -> str:
    if not isinstance(value, str) or not all(
        _DEVICE.fullmatch(part.strip()) for part in value.split(",") if part.strip()
    ):
        raise read.Wrong("auto, cpu, cuda or cuda:N, or several with commas between")
    return value


BLAZR_DEVICE: str = (
    read.custom(
        "BLAZR_DEVICE",
        _devices,
        kind="text",
        default="auto",
        help="cpu, cuda:N, or auto: the first CUDA device if there is one. blazr serve: a list.",
    )
    or "auto"
)
BLAZR_NATIVE: str = read.text(
    "BLAZR_NATIVE",
    "auto",
    choices=("auto", "off", "generic"),
    help="Native CPU kernels; auto: where they have been built; off: PyTorch alone; generic: without this processor's "
    "own instructions, to compare with, slow.",
)
BLAZR_MEMORY_BUDGET = read.size_bytes(
    "BLAZR_MEMORY_BUDGET",
    None,
    low=1 << 20,
    help="Memory for resident models; beyond it the least recently used are evicted. Default: 70 % of "
    "the machine's, or 90 % of what is free on a CUDA device at the start.",
)
BLAZR_KEEP_ALIVE_S = read.required_integer(
    "BLAZR_KEEP_ALIVE_S", 300, low=-1, high=10**8, help="Seconds that an unused model stays resident; -1: for ever."
)
BLAZR_MAX_IN_FLIGHT = read.required_integer(
    "BLAZR_MAX_IN_FLIGHT", 512, low=1, high=10**6, help="Most requests of one model, queued or running, before 429."
)
BLAZR_REQUEST_TIMEOUT_S = read.required_integer(
    "BLAZR_REQUEST_TIMEOUT_S", 600, low=1, high=86_400, help="Seconds after which a request is given up."
)
_PROCESS = process_options()
BLAZR_WORKER_ID = _PROCESS.worker_id or f"{os.uname().nodename}-{os.getpid()}"
BLAZR_PRELOAD = _PROCESS.preload
