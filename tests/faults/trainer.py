"""Write checkpoints as trainers do, slowly and in pieces: ``python -m tests.faults.trainer DIR --steps 50``.

Made to be killed: it continues after the last step in its journal, and writes a step that it was killed in again from
the beginning, over what is there. The kinds take turns: one file that grows; one that has its length before its
content; a directory with shards, their index last; one file that is renamed when it is whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "inference" / "demo" / "checkpoint"
JOURNAL = "train.journal"
PIECE_BYTES = 1 << 16
MAX_PAUSE_S = 0.05
NUM_KINDS = 4
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def whole_file(step: int, tensors: slice = slice(None)) -> bytes:
    """The safetensors file after a step: the demo model, with the step's number in its first tensor's data."""
    content = (DEMO / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"])[tensors]
    data, entries = b"", {}
    for name in names:
        begin, end = header[name]["data_offsets"]
        entries[name] = {**header[name], "data_offsets": [len(data), len(data) + end - begin]}
        data += content[8 + length + begin : 8 + length + end]
    data = struct.pack("<I", step) + data[4:]
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def files_of(step: int) -> dict[str, bytes]:
    """The weights of a step by their paths in the run's directory."""
    if step % NUM_KINDS != 2:
        return {f"nano_64_1m_f32_step_{step}.safetensors": whole_file(step)}
    return {
        f"checkpoint-{step}/{SHARDS[0]}": whole_file(step, slice(None, 20)),
        f"checkpoint-{step}/{SHARDS[1]}": whole_file(step, slice(20, None)),
    }


def write_step(directory: Path, step: int, pauses: Iterator[float]) -> None:
    """Write a step's files in pieces, over what an earlier attempt has left."""
    kind = step % NUM_KINDS
    files = files_of(step)
    for name, content in files.items():
        place = directory / name
        place.parent.mkdir(exist_ok=True)
        if kind == 2:
            shutil.copy(DEMO / "config.json", place.parent / "config.json")
        target = place.with_name(f"{place.name}.tmp") if kind == 3 else place
        with target.open("wb", buffering=0) as file:
            if kind == 1:
                file.truncate(len(content))
            for at in range(0, len(content), PIECE_BYTES):
                time.sleep(next(pauses))
                file.write(content[at : at + PIECE_BYTES])
        if kind == 3:
            target.rename(place)
    if kind == 2:
        place = directory / f"checkpoint-{step}"
        names = {name: json_names(content) for name, content in files.items()}
        weight_map = {tensor: Path(name).name for name, tensors in names.items() for tensor in tensors}
        for name, value in (
            ("model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map}),
            ("tokenizer_config.json", json.loads((DEMO / "tokenizer_config.json").read_text())),
            ("trainer_state.json", {"global_step": step}),
        ):
            time.sleep(next(pauses))
            (place / name).write_text(json.dumps(value))
        shutil.copy(DEMO / "tokenizer.json", place / "tokenizer.json")


def json_names(content: bytes) -> list[str]:
    """Names of the tensors in a safetensors file."""
    length = struct.unpack("<Q", content[:8])[0]
    return list(json.loads(content[8 : 8 + length]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes checkpoints slowly.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    directory = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (directory / name).exists():
            shutil.copy(DEMO / name, directory / name)
    journal = directory / JOURNAL
    done = len(journal.read_text().splitlines()) if journal.exists() else 0
    draws = random.Random(f"{arguments.seed} {done} {os.getpid()}")
    pauses = iter(lambda: draws.random() * MAX_PAUSE_S, None)
    for step in range(done + 1, arguments.steps + 1):
        write_step(directory, step, pauses)
        with journal.open("a") as file:
            file.write(f"{step}\n")


if __name__ == "__main__":
    main()
