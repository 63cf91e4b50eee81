"""Send requests over many adapters to a server that holds few: ``python -m tests.live.many_adapters``.

Each answer is compared with what the same adapter gives alone, in a process without a server. Prints how many answers
were those of another adapter, and how often one was read from the disk.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from inference.llm.options import LLMOptions
from tests.inference.llm.adapter_writing import write_adapter
from tests.inference.llm.harness import Checkpoint
from tests.live.conftest import DEVICE, LiveServer
from tests.live.test_adapters import complete, run_alone

RESIDENT = LLMOptions().max_adapters


def register(server: LiveServer, directories: list[Path]) -> None:
    """Register adapters of the model, each under its directory's name."""
    path = f"/registry/checkpoints/{server.checkpoint_id('tiny')}/adapters"
    with httpx.Client(base_url=server.url, headers=server.admin_headers, timeout=60) as client:
        for directory in directories:
            made = client.post(path, json={"path": str(directory)})
            assert made.status_code == 201, made.text


def num_reads(server: LiveServer) -> int:
    """How often an adapter was read from the disk."""
    (worker,) = server.workers()
    (model,) = worker.models
    return int(model.stats["adapters"]["num_loads"])


def run(place: Path, given: argparse.Namespace) -> int:
    """Return how many requests got the answer of another adapter."""
    directory = place / "tiny"
    directory.mkdir()
    paths = {f"a{number}": directory / "adapters" / f"a{number}" for number in range(given.adapters)}
    for number, path in enumerate(paths.values()):
        write_adapter(path, number)
    checkpoint = Checkpoint(directory)
    answers = run_alone(checkpoint, paths)
    draw = random.Random(given.seed)
    models = [draw.choice([*answers]) for _ in range(given.requests)]
    server = LiveServer(place / "data", *DEVICE, "--dtype", "float32", "--model", str(directory))
    try:
        server.wait_ready()
        register(server, list(paths.values()))
        begun = time.monotonic()
        with ThreadPoolExecutor(given.clients) as clients:
            found = list(clients.map(lambda model: complete(server, model), models))
        seconds, reads = time.monotonic() - begun, num_reads(server)
    finally:
        server.stop()
    wrong = sum(answer != answers[model] for model, answer in zip(models, found, strict=True))
    distinct = len({tuple(answer) for answer in answers.values()})
    sys.stdout.write(
        f"{given.requests} requests of {given.clients} clients over {given.adapters} adapters and the base, {RESIDENT} "
        f"resident, {distinct} different answers: {wrong} of another adapter, {reads} reads, {seconds:.1f} s\n"
    )
    return wrong


def main() -> int:
    """Return 0 if each request was answered by its adapter."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.many_adapters", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--adapters", type=int, default=100)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory(prefix="blazr-adapters-") as place:
        return 1 if run(Path(place), parser.parse_args()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
