"""What is compared: our engine and the peers, each in the number formats that it has, and how a child of it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environments import Environments
from bench.processes import Child, PeerFailed

PEERS = ("llama-cpp", "openvino", "mistralrs", "transformers")
_NO_PEER = "oxidizr's layers are known to no peer"


@dataclass(frozen=True, slots=True)
class Job:
    """Where everything is that starting a child may need.

    Attributes:
        prefix: A command put before each measured process.
        cold: The weights are to come from the disk, not from the kernel's cache.
    """

    checkpoint: Path
    vocab_size: int
    environments: Environments
    prefix: str = ""
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Implementation:
    """One row of the tables.

    Attributes:
        peer: ``blazr`` or one of ``PEERS``.
        bits: 16, 8 or 4: what is compared with what.
        stored_bits: Bits of an element of a matrix with its scales; None: by the size of its file.
        start: Start the child that measures in process.
        start_server: The same for a server, None: ``clients`` are measured in process.
    """

    name: str
    peer: str
    bits: int
    stored_bits: float | None
    start: Callable[[Job], Child]
    start_server: Callable[[Job], Child] | None = None
    tasks: frozenset[str] = field(default=frozenset({"decode", "prefill", "load", "memory", "http"}))


def _ours(name: str, bits: int, stored_bits: float, quant: str | None) -> Implementation:
    def options(job: Job) -> dict[str, Any]:
        return {"quant": quant, "prefix": job.prefix, "cold": job.cold}

    return Implementation(
        name,
        "blazr",
        bits,
        stored_bits,
        lambda job: Child("engine", job.checkpoint, **options(job)),
        lambda job: Child("blazr-server", job.checkpoint, **options(job)),
        frozenset({"decode", "prefill", "load", "memory", "http", "own"}),
    )


def _llama_cpp(form: str, bits: int, stored_bits: float | None) -> Implementation:
    def start(job: Job) -> Child:
        _refuse_oxidizr(job)
        python = job.environments.python("llama-cpp")
        file = job.environments.gguf(job.checkpoint, form)
        return Child("llama-cpp", python=python, prefix=job.prefix, cold=job.cold, file=str(file))

    def serve(job: Job) -> Child:
        _refuse_oxidizr(job)
        file = job.environments.gguf(job.checkpoint, form)
        binary = job.environments.llama_server()
        return Child("llama-server", prefix=job.prefix, cold=job.cold, binary=str(binary), file=str(file))

    return Implementation(f"llama.cpp {form}", "llama-cpp", bits, stored_bits, start, serve)


def _openvino(form: str, bits: int, stored_bits: float) -> Implementation:
    def start(job: Job) -> Child:
        _refuse_oxidizr(job)
        python = job.environments.python("openvino")
        directory = job.environments.openvino_model(job.checkpoint, form)
        return Child("openvino", directory, python=python, prefix=job.prefix, cold=job.cold, vocab_size=job.vocab_size)

    return Implementation(f"openvino {form}", "openvino", bits, stored_bits, start)


def _mistralrs(name: str, bits: int, stored_bits: float, quant: str | None) -> Implementation:
    def start(job: Job) -> Child:
        _refuse_oxidizr(job)
        python = job.environments.python("mistralrs")
        return Child("mistralrs", job.checkpoint, python=python, prefix=job.prefix, cold=job.cold, quant=quant)

    return Implementation(name, "mistralrs", bits, stored_bits, start)


def _transformers(name: str, *, compiled: bool) -> Implementation:
    def start(job: Job) -> Child:
        _refuse_oxidizr(job)
        return Child("transformers", job.checkpoint, prefix=job.prefix, cold=job.cold, compiled=compiled)

    tasks = {"decode"} if compiled else {"decode", "prefill", "load", "memory"}
    return Implementation(name, "transformers", 16, 16, start, tasks=frozenset(tasks))


def _refuse_oxidizr(job: Job) -> None:
    if (job.checkpoint / "oxidizr").exists():
        raise PeerFailed(_NO_PEER)


IMPLEMENTATIONS = (
    _ours("blazr bf16", 16, 16, None),
    _ours("blazr int8", 8, 8, "int8"),
    _ours("blazr int4", 4, 4.5, "int4"),
    _llama_cpp("bf16", 16, 16),
    _llama_cpp("q8_0", 8, 8.5),
    _llama_cpp("q4_k_m", 4, None),
    _openvino("fp16", 16, 16),
    _openvino("int8", 8, 8),
    _openvino("int4", 4, 4.5),
    _mistralrs("mistralrs bf16", 16, 16, None),
    _mistralrs("mistralrs q8_0", 8, 8.5, "Q8_0"),
    _transformers("transformers", compiled=False),
    _transformers("transformers compiled", compiled=True),
)
