"""A checkpoint of gigabytes is pushed, and its client and its web process are killed on the way."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.load.site import LoadSite
from tests.faults.site import ROOT, wait_until

HIDDEN, WIDTH, HEADS, VOCAB = 2048, 8192, 16, 32_000
BLOCK_BYTES = 64 << 20
KILL_SHARES = {"client": 0.3, "web": 0.6}
"""What is killed when so much of the bytes has arrived."""
TIMEOUT_S = 900.0
NAME = "large"


@dataclass
class Uploads:
    """What came of the pushes.

    Attributes:
        size_bytes: Of the checkpoint.
        seconds: From the first push to the end of the last one.
        memory_bytes: By how much the anonymous memory of a web process grew, at most.
        kills: What was killed, and at how many received bytes.
        resumed_bytes: What the server had when the second client began.
        problems: Files that aren't those of the client, and what is left behind.
    """

    size_bytes: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    kills: list[str] = field(default_factory=list)
    resumed_bytes: int = 0
    problems: list[str] = field(default_factory=list)


class WebMemory(threading.Thread):
    """Looks at the memory of the web processes twenty times a second; a new process counts from its own start."""

    def __init__(self, site: LoadSite) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._stopping = False
        self.most_bytes = 0

    def run(self) -> None:
        while not self._stopping:
            with suppress(OSError, RuntimeError):  # a process was killed just now
                self.most_bytes = max(self.most_bytes, self._site.web_memory())
            time.sleep(0.05)

    def stop(self) -> None:
        """End, and wait for it."""
        self._stopping = True
        self.join()


def write_llama(directory: Path, size_bytes: int) -> int:
    """Write a checkpoint of about that size with weights that are any small numbers; returns its bytes."""
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH
    num_layers = max(1, round((size_bytes / 2 - VOCAB * HIDDEN) / layer))
    directory.mkdir(parents=True)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "num_hidden_layers": num_layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "intermediate_size": WIDTH, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for number in range(num_layers):
        prefix = f"model.layers.{number}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, WIDTH)
        shapes |= {f"{prefix}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    entries, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    block = random.Random(5).randbytes(BLOCK_BYTES).translate(bytes(value & 0x3B for value in range(256)))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for start in range(0, offset, BLOCK_BYTES):
            file.write(block[: offset - start])
    return sum(path.stat().st_size for path in directory.iterdir())


class Pusher:
    """Runs ``blazr push`` of a directory in processes of its own, each of which goes on where the last one was."""

    def __init__(self, site: LoadSite, place: Path) -> None:
        self._site = site
        self._place = place
        self._key = site.admin_key()
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Start a client."""
        command = [
            *(sys.executable, "-m", "blazr_site.cli", "push", str(self._place), "--server", self._site.urls[0]),
            *("--key", self._key, "--name", NAME),
        ]
        variables = self._site.environment | {"XDG_CACHE_HOME": str(self._site.directory / "cache")}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        return self.process

    def received(self) -> int:
        """Bytes that the server has of the upload."""
        return sum(path.stat().st_size for path in (self._site.directory / "uploads").glob("*/*.part"))

    def await_bytes(self, least: float) -> int:
        """Wait until the server has so many bytes; returns how many it has."""

        def has_arrived() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.process.communicate()[0][-2000:]
            return self.received() >= least

        wait_until(has_arrived, TIMEOUT_S, f"the arrival of {least / 1e6:.0f} MB")
        return self.received()


@contextmanager
def watched(site: LoadSite) -> Iterator[WebMemory]:
    memory = WebMemory(site)
    memory.start()
    try:
        yield memory
    finally:
        memory.stop()


def run_uploads(site: LoadSite, size_bytes: int) -> Uploads:
    """Push a checkpoint of that size in two clients and over the death of a web process."""
    found, place = Uploads(), site.directory / "pushed"
    found.size_bytes = write_llama(place, size_bytes)
    pusher, before, begun = Pusher(site, place), site.web_memory(), time.monotonic()
    with watched(site) as memory:
        client = pusher.start()
        at = pusher.await_bytes(KILL_SHARES["client"] * found.size_bytes)
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        found.kills.append(f"the client at {at / found.size_bytes:.0%}")
        found.problems += half_models(site)
        found.resumed_bytes = pusher.received()
        client = pusher.start()
        at = pusher.await_bytes(KILL_SHARES["web"] * found.size_bytes)
        site.signal("web-0", signal.SIGKILL)
        found.kills.append(f"its web process at {at / found.size_bytes:.0%}")
        wait_until(lambda: is_checking(site), TIMEOUT_S, "the check of the files")
        site.signal("web-0", signal.SIGKILL)
        found.kills.append("its web process while it checked the files")
        output, _ = client.communicate(timeout=TIMEOUT_S)
        if client.returncode != 0:
            found.problems.append(f"blazr push ended with {client.returncode}: {output[-500:]}")
    found.seconds = time.monotonic() - begun
    found.memory_bytes = memory.most_bytes - before
    found.problems += wrong_files(site, place)
    return found


def is_checking(site: LoadSite) -> bool:
    """Whether a web process reads what it has received."""
    return site.rows("select state from models_registry_upload") == [("checking",)]


def half_models(site: LoadSite) -> list[str]:
    """What the registry has of a model whose upload hasn't ended."""
    rows = site.rows("select served_model_name from models_registry_checkpoint where source = 'upload'")
    return [f"{name} is registered before its upload has ended" for (name,) in rows]


def wrong_files(site: LoadSite, place: Path) -> list[str]:
    """What differs between the checkpoint and the registered one, and what is left of the upload."""
    rows = site.rows(
        "select served_model_name, state, directory, file_stamps from models_registry_checkpoint "
        "where source = 'upload'"
    )
    left = [f"{path.name} is left of the upload" for path in (site.directory / "uploads").rglob("*.part")]
    if [row[:2] for row in rows] != [(NAME, "available")]:
        return [f"registered: {[row[:2] for row in rows]}", *left]
    ((_, _, directory, stamps),) = rows
    problems = []
    for stamp in json.loads(stamps):
        wanted = hashlib.sha256()
        with (place / stamp["name"]).open("rb") as file:
            while piece := file.read(1 << 20):
                wanted.update(piece)
        stored = Path(directory) / stamp["name"]
        if stamp["sha256"] != wanted.hexdigest() or stored.stat().st_size != (place / stamp["name"]).stat().st_size:
            problems.append(f"{stamp['name']} isn't the client's")
    return problems + left
