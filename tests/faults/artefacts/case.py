"""Define a case of the corpus: a builder of files, and the verdict on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.models_registry.detection.builders import LLAMA_CONFIG, llama_shapes, write_json, write_tensors

Content = bytes | tuple[bytes, int]
"""Bytes of a file; of a pair, the second is the number of bytes (a hole) behind the first."""


@dataclass(frozen=True, slots=True)
class Case:
    """Files of a checkpoint, and what the intake has to say of them.

    Attributes:
        name: What the files are.
        make: Writes them into an empty directory.
        refusal: A pattern in the refusal's message; None: the files are accepted.
        advisory: The published hole of other servers that the case repeats.
        target: The file that is registered; empty: the directory.
    """

    name: str
    make: Callable[[Path], object]
    refusal: str | None
    advisory: str = ""
    target: str = ""


def write(path: Path, content: Content) -> None:
    """Write a file, with a hole at its end if ``content`` has one."""
    start, hole = content if isinstance(content, tuple) else (content, 0)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + hole)


@cache
def _weights() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        write_tensors(Path(directory) / "model.safetensors", llama_shapes())
        return (Path(directory) / "model.safetensors").read_bytes()


def write_llama(directory: Path, config: Mapping[str, Any] | None = None) -> None:
    """Write a whole, harmless checkpoint."""
    (directory / "model.safetensors").write_bytes(_weights())
    write_json(directory / "config.json", LLAMA_CONFIG if config is None else config)


def beside_weights(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a builder of a harmless checkpoint with one file written, or written over."""

    def make(directory: Path) -> None:
        write_llama(directory)
        (directory / name).write_bytes(content)

    return make
