"""One measured implementation in a process of its own: reads a JSON command per line, writes one result per line.

    python -m bench.child KIND '{"directory": …, more options of the kind}'

It runs in the peer's own environment, so this module needs the standard library only, and each kind's module beyond
that nothing but the peer. The first line it writes is ``{"ready": true, "load_s": …, …}``; importing libraries
isn't part of ``load_s``. A command is ``{"do": name, **values}``; the result is a dict of numbers or lists of them,
or ``{"error": text}``. The commands that a kind has are the public methods of its class; all have
``memory`` and ``time_to_read`` (of the weights, from the disk).

A process of its own keeps thread pools and memory apart.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import disturbance

SEED = 3
KINDS = {
    "engine": "bench.peers.engine:EnginePeer",
    "loading": "bench.peers.loading:LoadingPeer",
    "transformers": "bench.peers.transformers_peer:TransformersPeer",
    "llama-cpp": "bench.peers.llama_cpp_peer:LlamaCppPeer",
    "openvino": "bench.peers.openvino_peer:OpenVINOPeer",
    "mistralrs": "bench.peers.mistralrs_peer:MistralrsPeer",
    "blazr-server": "bench.peers.servers:BlazrServer",
    "llama-server": "bench.peers.servers:LlamaServer",
    "machine": "bench.machine:Machine",
}


def random_prompts(count: int, length: int, vocab_size: int, seed: int = SEED) -> list[list[int]]:
    """Seeded token-id prompts, all different."""
    source = random.Random(seed)
    return [[source.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def stream_figures(started: float, arrivals: Sequence[Sequence[tuple[float, int]]]) -> dict[str, Any]:
    """Figures of requests that were sent together.

    Args:
        arrivals: Of each request (time, number of tokens that came with it), in order.

    Returns:
        ``tokens_per_s`` in all from sending to the last token, ``ttft_s`` of each request, ``itl_s`` of each
        further token; tokens that came together share the time since the ones before.
    """
    gaps: list[float] = []
    for stream in arrivals:
        for (before, _), (now, count) in itertools.pairwise(stream):
            gaps += [(now - before) / count] * count
    total = sum(count for stream in arrivals for _, count in stream)
    last = max(stream[-1][0] for stream in arrivals)
    return {
        "tokens_per_s": total / (last - started),
        "ttft_s": [stream[0][0] - started for stream in arrivals],
        "itl_s": gaps,
    }


def add_unshown(arrivals: list[tuple[float, int]], total: int) -> None:
    """Count tokens that made no chunk of their own, such as a part of a character, as if they came with the last one.

    Args:
        arrivals: (time, tokens) of a request's chunks.
        total: Tokens that there were by the server's own count.
    """
    missing = total - sum(count for _, count in arrivals)
    if missing > 0 and arrivals:
        at, count = arrivals[-1]
        arrivals[-1] = (at, count + missing)


def decode_rate(arrivals: Sequence[Sequence[tuple[float, int]]]) -> dict[str, float]:
    """Tokens per second from the moment when every sequence has its first token until the first one ends."""
    begin = max(stream[0][0] for stream in arrivals)
    end = min(stream[-1][0] for stream in arrivals)
    if end <= begin:
        raise RuntimeError("a sequence ended before every other had begun; ask for more tokens")
    count = sum(number for stream in arrivals for at, number in stream if begin < at <= end)
    return {"tokens_per_s": count / (end - begin)}


def peak_bytes(pid: int | str = "self") -> int:
    """Most memory that a process has had resident, mapped files included."""
    return status_bytes("VmHWM", pid)


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A size from a process's ``status``: ``VmHWM`` is its peak, ``VmRSS`` what is resident now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


def forget_file_cache(path: Path) -> None:
    """Let the kernel drop weights from its cache, so that a load reads them from the disk."""
    for file in weight_files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def weight_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("openvino_model.bin")]


def time_to_read(path: Path) -> dict[str, float]:
    """Seconds to read the weights from the disk, from beginning to end."""
    forget_file_cache(path)
    buffer = bytearray(16 << 20)
    started = time.perf_counter()
    for file in weight_files(path):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                continue
    return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Serve commands from standard input."""
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    weights = Path(options.get("file") or options.get("directory") or os.devnull)
    cold = options.pop("cold", False)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print, in C too, belongs to the log
    module, _, name = KINDS[kind].partition(":")

    def write(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=output, flush=True)

    try:
        peer: Any = getattr(importlib.import_module(module), name)(**options)
        if cold:
            # The host of a virtual machine reads what nobody has asked for lately at half the rate: once before, so
            # that a load finds the file as the reading does that it is compared with.
            time_to_read(weights)
            forget_file_cache(weights)
        before, started = disturbance.moment(), time.perf_counter()
        facts = peer.load() or {}
        load_s, after = time.perf_counter() - started, disturbance.moment()
        cpus, words = disturbance.foreign_work(before, after, set(disturbance.family(os.getpid())))
        facts |= {"load_s": load_s, "load_disturbed": words if cpus > disturbance.TOLERATED_CPUS else ""}
        write({"ready": True, "pid": os.getpid(), **facts})
    except BaseException as error:
        traceback.print_exc()
        write({"error": describe(error)})
        os._exit(1)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name == "quit":
            break
        try:
            if name == "memory" and not hasattr(peer, "memory"):
                write({"peak_bytes": peak_bytes()})
            elif name == "time_to_read":
                write(time_to_read(weights))
            else:
                write(getattr(peer, name)(**command))
        except BaseException as error:
            traceback.print_exc()
            write({"error": describe(error)})
    if hasattr(peer, "close"):
        peer.close()
    os._exit(0)  # engines with threads of their own need not end in order


def describe(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines)[:600]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
