"""Settings of model execution: the fields of ``inference.llm.options.LLMOptions`` that the site sets.

The values are a plain mapping, because the class needs torch, which the web process must not import. Workers build the
options from the mapping; a model's own settings replace these values.
"""

from __future__ import annotations

from typing import Any

from blazr_site.settings import read

BLAZR_MAX_MODEL_LEN = read.integer(
    "BLAZR_MAX_MODEL_LEN",
    None,
    low=16,
    high=1 << 24,
    help="Longest prompt plus output in tokens. Default: the model's.",
)


def _prefix_cache(value: Any) -> tuple[bool, dict[str, int]]:
    """Parse the prefix cache's setting: whether it is on, and sizes by name."""
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


_PREFIX_CACHE, _SNAPSHOTS = read.custom(
    "BLAZR_PREFIX_CACHE",
    _prefix_cache,
    kind="on | off | on,snapshots=BYTES,host=BYTES",
    default="on",
    help="Keep states for prompts that begin like earlier ones; snapshots: state memory for snapshots of recurrent "
    "state (1GiB, 40 % of the rest at most); host: host memory for those that had to leave a CUDA device (0).",
) or (True, {})
BLAZR_LLM_OPTIONS: dict[str, Any] = {
    "dtype": read.text(
        "BLAZR_DTYPE",
        "auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="Number format of weights and caches; auto: what fits the device and the stored weights.",
    ),
    "quant": read.text(
        "BLAZR_QUANT",
        "auto",
        choices=("auto", "none", "int8", "int4"),
        help="What the matrices of models become as they are loaded: auto keeps the codes of a quantised file, none "
        "makes floats of them; int8 and int4 take less memory and decode faster.",
    ),
    "speculative": read.speculative(
        "BLAZR_SPECULATIVE",
        help="Draft tokens with ngram, mtp or draft:MODEL, perhaps ,k=NUMBER; for models without a setting of theirs.",
    ),
    "max_model_len": BLAZR_MAX_MODEL_LEN,
    "max_num_seqs": read.required_integer(
        "BLAZR_MAX_NUM_SEQS", 64, low=1, high=4096, help="Most requests of one model that are computed together."
    ),
    "max_num_batched_tokens": read.integer(
        "BLAZR_MAX_NUM_BATCHED_TOKENS",
        None,
        low=16,
        high=1 << 20,
        help="Most tokens that are computed in one step. Default: 512; on a CPU 128 to 512, fewer for larger models.",
    ),
    "cache_bytes": read.size_bytes(
        "BLAZR_CACHE_BYTES",
        None,
        low=1 << 16,
        help="State memory (KV cache, …) of one model. Default: by the budget.",
    ),
    "prefix_cache": _PREFIX_CACHE,
    "snapshot_bytes": _SNAPSHOTS.get("snapshots"),
    "snapshot_host_bytes": _SNAPSHOTS.get("host", 0),
    "cache_dir": read.path(
        "BLAZR_CACHE_DIR", None, help="Directory in which the prefix cache outlives a restart. Default: none."
    ),
    "cache_dir_bytes": read.required_size_bytes(
        "BLAZR_CACHE_DIR_BYTES", 16 << 30, help="Most bytes in BLAZR_CACHE_DIR, all models together."
    ),
    "num_threads": read.integer(
        "BLAZR_NUM_THREADS",
        None,
        low=1,
        high=1024,
        help="Compute threads of a CPU worker. Default: the physical cores.",
    ),
}
