"""Read what a LoRA adapter's files say: configuration and tensor headers, with bounds and without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.config import CONFIG_FILE, LoraConfig
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import AdapterPlan, plan_adapter
from models_registry.detection.json_file import read_object
from models_registry.detection.safetensors_header import read_header

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILE = "tokenizer.model"
TOKENIZER_FILES = (TOKENIZER_FILE, "vocab.json", SENTENCEPIECE_FILE)
"""Files with a vocabulary that trainers save beside an adapter."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter on disk.

    Attributes:
        weights: Its safetensors file.
        config_path: adapter_config.json.
        config: What it says.
        tensors: By name.
        tokenizers: The files of ``TOKENIZER_FILES`` that were saved beside it.
    """

    weights: Path
    config_path: Path
    config: LoraConfig
    tensors: Mapping[str, TensorInfo]
    tokenizers: tuple[Path, ...]

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The safetensors files."""
        return (self.weights,)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(info.end - info.begin for info in self.tensors.values())

    def digest(self) -> str:
        """Read all of the files and return the SHA-256 of their content."""
        return content_digest((self.weights, self.config_path))

    def plan(self, base: BaseModules) -> AdapterPlan:
        """Check it against a base; see ``plan_adapter``."""
        return plan_adapter(self.config, self.tensors, base)


def content_digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the content of files, in their order."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


@contextmanager
def advising() -> Iterator[None]:
    """Let the errors of an adapter's broken files say what to do."""
    try:
        yield
    except CorruptCheckpoint as error:
        message = error.message.removesuffix(".")
        raise CorruptCheckpoint(
            f"{message}; copy the adapter again as a whole, or save it again.", param=error.param
        ) from None


def read_adapter(path: Path) -> AdapterFiles:
    """Read the headers of an adapter.

    Args:
        path: The directory that PEFT has written, or its safetensors file.

    Raises:
        CorruptCheckpoint: A file is missing or broken.
        UnsupportedFormat: It is no LoRA adapter, or none that can be served; see ``LoraConfig``.
    """
    shown = str(path)[:200]
    if path.is_file():
        directory, weights = path.parent, path
    elif path.is_dir():
        directory, weights = path, path / WEIGHTS_FILE
        if not weights.is_file():
            if (path / PICKLE_FILE).exists():
                raise UnsupportedFormat(
                    f"{shown} has {PICKLE_FILE}, a pickle, which can run code; save the adapter as safetensors "
                    "(save_pretrained(…, safe_serialization=True)).",
                    param=PICKLE_FILE,
                )
            raise CorruptCheckpoint(
                f"{shown} has no {WEIGHTS_FILE}; give the directory of an adapter that PEFT saved.", param=shown
            )
    else:
        raise CorruptCheckpoint(f"{shown} is neither a directory nor a file; give an adapter's.", param=shown)
    if not (directory / CONFIG_FILE).is_file():
        raise CorruptCheckpoint(
            f"{directory.name} has no {CONFIG_FILE} beside {weights.name}; copy the adapter again as a whole.",
            param=CONFIG_FILE,
        )
    with advising():
        content, tensors = read_object(directory / CONFIG_FILE), read_header(weights)
    config = LoraConfig.from_dict(content)
    return AdapterFiles(weights, directory / CONFIG_FILE, config, tensors, saved_tokenizers(directory))


def saved_tokenizers(directory: Path) -> tuple[Path, ...]:
    """The files of ``TOKENIZER_FILES`` in a directory."""
    return tuple(directory / name for name in TOKENIZER_FILES if (directory / name).is_file())
