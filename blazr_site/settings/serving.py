"""What the workers load and how much they admit. The engine itself never reads settings."""

from __future__ import annotations

import os
from pathlib import Path

from blazr_site.settings import env

BLAZR_MODEL = env.texts("BLAZR_MODEL", help="Models that blazr serve loads at its start: path, hub id, or NAME=path.")
BLAZR_DEVICE: str = (
    env.text(
        "BLAZR_DEVICE", "auto", help="cpu, cuda:N, or auto: the first CUDA device if there is one. blazr serve: a list."
    )
    or "auto"
)
BLAZR_DTYPE = env.text(
    "BLAZR_DTYPE",
    "auto",
    choices=("auto", "float32", "bfloat16", "float16"),
    help="Number format of weights and caches; auto: what fits the device and the stored weights.",
)
BLAZR_QUANT = env.text(
    "BLAZR_QUANT",
    "none",
    choices=("none", "int8", "int4"),
    help="What the matrices of models become as they are loaded; int8 and int4 take less memory and decode faster.",
)
BLAZR_SPECULATIVE = env.speculative(
    "BLAZR_SPECULATIVE",
    help="Guess ahead: ngram, or draft:MODEL, and perhaps ,k=NUMBER; for models without a setting of their own.",
)
BLAZR_MAX_MODEL_LEN = env.integer(
    "BLAZR_MAX_MODEL_LEN",
    None,
    low=16,
    high=1 << 24,
    help="Longest prompt plus output in tokens. Default: the model's.",
)
BLAZR_MAX_NUM_SEQS = env.required_integer(
    "BLAZR_MAX_NUM_SEQS", 64, low=1, high=4096, help="Most requests of one model that are computed together."
)
BLAZR_MAX_NUM_BATCHED_TOKENS = env.required_integer(
    "BLAZR_MAX_NUM_BATCHED_TOKENS", 512, low=16, high=1 << 20, help="Most tokens that are computed in one step."
)
BLAZR_CACHE_BYTES = env.size_bytes(
    "BLAZR_CACHE_BYTES",
    None,
    low=1 << 16,
    help="State memory (KV cache, …) of one model. Default: by the budget.",
)
BLAZR_PREFIX_CACHE = env.flag("BLAZR_PREFIX_CACHE", True, help="Keep states for prompts that begin like earlier ones.")
BLAZR_SNAPSHOT_BYTES = env.size_bytes(
    "BLAZR_SNAPSHOT_BYTES",
    None,
    help="State memory for the prefix cache's snapshots of recurrent state. Default: 1GiB, 40 % of the rest at most.",
)
BLAZR_SNAPSHOT_HOST_BYTES = env.required_size_bytes(
    "BLAZR_SNAPSHOT_HOST_BYTES", 0, help="Host memory for snapshots that had to leave a CUDA device."
)
_CACHE_DIR = env.text("BLAZR_CACHE_DIR", help="Directory in which the prefix cache outlives a restart. Default: none.")
BLAZR_CACHE_DIR: Path | None = Path(_CACHE_DIR).expanduser().absolute() if _CACHE_DIR else None
BLAZR_CACHE_DIR_BYTES = env.required_size_bytes(
    "BLAZR_CACHE_DIR_BYTES", 16 << 30, help="Most bytes in BLAZR_CACHE_DIR, all models together."
)
# Read by the engine itself (inference/native), which knows no settings; listed and checked here.
env.text(
    "BLAZR_NATIVE",
    "auto",
    choices=("auto", "off", "generic"),
    help="Native CPU kernels; auto: where they have been built; off: PyTorch alone; generic: without this processor's "
    "own instructions, to compare with, slow.",
)
env.text("BLAZR_NATIVE_DIR", help="Where built kernels are kept. Default: blazr/native in the user's cache folder.")
BLAZR_NUM_THREADS = env.integer(
    "BLAZR_NUM_THREADS", None, low=1, high=1024, help="Compute threads of a CPU worker. Default: the physical cores."
)
BLAZR_GRAMMAR_MAX_BYTES = env.required_size_bytes(
    "BLAZR_GRAMMAR_MAX_BYTES", 256 << 10, low=16, help="Largest schema, regular expression or grammar of a request."
)
BLAZR_GRAMMAR_COMPILE_S = env.number(
    "BLAZR_GRAMMAR_COMPILE_S",
    2.0,
    low=0.05,
    high=60,
    help="Processor seconds that a schema, regular expression or grammar may take to compile.",
)
BLAZR_MEMORY_BUDGET = env.size_bytes(
    "BLAZR_MEMORY_BUDGET",
    None,
    low=1 << 20,
    help="Memory for resident models; beyond it the least recently used are evicted. Default: 70 % of "
    "the machine's, or 90 % of what is free on a CUDA device at the start.",
)
BLAZR_KEEP_ALIVE_S = env.required_integer(
    "BLAZR_KEEP_ALIVE_S", 300, low=-1, high=10**8, help="Seconds that an unused model stays resident; -1: for ever."
)
BLAZR_MIN_RESIDENCE_S = env.required_integer(
    "BLAZR_MIN_RESIDENCE_S",
    5,
    low=0,
    high=3600,
    help="Seconds that a loaded model stays before it makes room for another; at least as long as its load took.",
)
BLAZR_PRELOAD = env.texts("BLAZR_PRELOAD", help="Checkpoint ids that a worker loads at its start and keeps.")
BLAZR_MAX_IN_FLIGHT = env.required_integer(
    "BLAZR_MAX_IN_FLIGHT", 512, low=1, high=10**6, help="Most requests of one model, queued or running, before 429."
)
BLAZR_REQUEST_TIMEOUT_S = env.required_integer(
    "BLAZR_REQUEST_TIMEOUT_S", 600, low=1, high=86_400, help="Seconds after which a request is given up."
)
BLAZR_STREAM_INTERVAL_MS = env.required_integer(
    "BLAZR_STREAM_INTERVAL_MS",
    100,
    low=0,
    high=1000,
    help="With 8 and more streams, what several short steps made goes out in one piece, at most 3 milliseconds for "
    "each stream after the piece before, and at most so many; 0: every token by itself. First tokens never wait.",
)
BLAZR_WORKER_LOST_TIMEOUT_S = env.required_integer(
    "BLAZR_WORKER_LOST_TIMEOUT_S",
    20,
    low=1,
    high=3600,
    help="Seconds that a request waits for some worker to be alive before it fails.",
)
BLAZR_RESPONSE_RETENTION_DAYS = env.required_integer(
    "BLAZR_RESPONSE_RETENTION_DAYS",
    30,
    low=1,
    high=36_500,
    help="Days after which stored responses of /v1/responses are deleted.",
)
BLAZR_RESPONSE_STREAMS = env.required_integer(
    "BLAZR_RESPONSE_STREAMS",
    256,
    low=1,
    high=100_000,
    help="Most streams of background responses that one web process serves; each looks into the database.",
)
_DEFAULT_WORKER_ID = f"{os.uname().nodename}-{os.getpid()}"
BLAZR_WORKER_ID: str = (
    env.text("BLAZR_WORKER_ID", help="Name of this worker process. Default: host name and process id.")
    or _DEFAULT_WORKER_ID
)
