"""What the workers load and how much they admit. The engine itself never reads settings."""

from __future__ import annotations

import os
from typing import Any

from blazr_site.process_environment import process_options
from blazr_site.settings import read

BLAZR_DEVICE: str = read.text(
    "BLAZR_DEVICE", "auto", help="cpu, cuda:N, or auto: the first CUDA device if there is one. blazr serve: a list."
)
BLAZR_DTYPE = read.text(
    "BLAZR_DTYPE",
    "auto",
    choices=("auto", "float32", "bfloat16", "float16"),
    help="Number format of weights and caches; auto: what fits the device and the stored weights.",
)
BLAZR_QUANT = read.text(
    "BLAZR_QUANT",
    "none",
    choices=("none", "int8", "int4"),
    help="What the matrices of models become as they are loaded; int8 and int4 take less memory and decode faster.",
)
BLAZR_SPECULATIVE = read.speculative(
    "BLAZR_SPECULATIVE",
    help="Draft tokens with ngram or draft:MODEL, and perhaps ,k=NUMBER; for models without a setting of their own.",
)
BLAZR_MAX_MODEL_LEN = read.integer(
    "BLAZR_MAX_MODEL_LEN",
    None,
    low=16,
    high=1 << 24,
    help="Longest prompt plus output in tokens. Default: the model's.",
)
BLAZR_MAX_NUM_SEQS = read.required_integer(
    "BLAZR_MAX_NUM_SEQS", 64, low=1, high=4096, help="Most requests of one model that are computed together."
)
BLAZR_MAX_NUM_BATCHED_TOKENS = read.required_integer(
    "BLAZR_MAX_NUM_BATCHED_TOKENS", 512, low=16, high=1 << 20, help="Most tokens that are computed in one step."
)
BLAZR_CACHE_BYTES = read.size_bytes(
    "BLAZR_CACHE_BYTES",
    None,
    low=1 << 16,
    help="State memory (KV cache, …) of one model. Default: by the budget.",
)


def _prefix_cache(value: Any) -> tuple[bool, dict[str, int]]:
    """Whether it is on, and sizes by name."""
    if isinstance(value, str):
        first, _, rest = value.partition(",")
        switch = first.strip().lower()
        if switch in ("off", "false", "no", "0") and not rest:
            return False, {}
        value = rest if switch in ("on", "true", "yes", "1") else value
    elif isinstance(value, bool):
        return value, {}
    try:
        return True, read.parse_pairs(value, dict.fromkeys(("snapshots", "host"), read.parse_size))
    except read.Wrong:
        raise read.Wrong("on, off, or on,snapshots=BYTES,host=BYTES") from None


BLAZR_PREFIX_CACHE, _SNAPSHOTS = read.custom(
    "BLAZR_PREFIX_CACHE",
    _prefix_cache,
    kind="on | off | on,snapshots=BYTES,host=BYTES",
    default="on",
    help="Keep states for prompts that begin like earlier ones; snapshots: state memory for snapshots of recurrent "
    "state (1GiB, 40 % of the rest at most); host: host memory for those that had to leave a CUDA device (0).",
) or (True, {})
BLAZR_SNAPSHOT_BYTES = _SNAPSHOTS.get("snapshots")
BLAZR_SNAPSHOT_HOST_BYTES = _SNAPSHOTS.get("host", 0)
BLAZR_CACHE_DIR = read.path(
    "BLAZR_CACHE_DIR", None, help="Directory in which the prefix cache outlives a restart. Default: none."
)
BLAZR_CACHE_DIR_BYTES = read.required_size_bytes(
    "BLAZR_CACHE_DIR_BYTES", 16 << 30, help="Most bytes in BLAZR_CACHE_DIR, all models together."
)
BLAZR_NATIVE: str = read.text(
    "BLAZR_NATIVE",
    "auto",
    choices=("auto", "off", "generic"),
    help="Native CPU kernels; auto: where they have been built; off: PyTorch alone; generic: without this processor's "
    "own instructions, to compare with, slow.",
)
BLAZR_NUM_THREADS = read.integer(
    "BLAZR_NUM_THREADS", None, low=1, high=1024, help="Compute threads of a CPU worker. Default: the physical cores."
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
