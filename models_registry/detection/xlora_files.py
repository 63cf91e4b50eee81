"""Read what an X-LoRA's files say: its configuration, the headers of its classifier and of its adapters.

Two layouts are known: PEFT's (adapter_config.json with peft_type XLORA, and adapter_model.safetensors, which holds the
classifier) and the older one that mistral.rs reads (xlora_config.json, xlora_classifier.safetensors, and perhaps an
ordering file). The adapters lie in directories below: the paths of a configuration are those of another machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.config import CONFIG_FILE
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.xlora_config import MAX_ADAPTERS, Ordering, XLoraConfig
from inference.modelling.lora.xlora_plan import XLoraPlan, naming_adapter, plan_xlora
from models_registry.detection.adapter_files import (
    WEIGHTS_FILE,
    AdapterFiles,
    advising,
    content_digest,
    read_adapter,
    saved_tokenizers,
)
from models_registry.detection.json_file import read_object
from models_registry.detection.safetensors_header import read_header

XLORA_CONFIG_FILE = "xlora_config.json"
CLASSIFIER_FILE = "xlora_classifier.safetensors"
ORDERING_PATTERN = "*ordering.json"
MAX_ENTRIES = 4096
"""Entries of a directory that are looked at."""


@dataclass(frozen=True, slots=True)
class XLoraFiles:
    """An X-LoRA on disk.

    Attributes:
        classifier: The safetensors file of the classifier.
        config_path: Its configuration.
        config: What that says, the adapters in the order of the classifier's outputs.
        tensors: Of the classifier, by name.
        adapters: The files of each adapter, in that order.
        ordering: What its ordering file says; None: there is none.
        tokenizers: The files with a vocabulary that were saved beside it.
    """

    classifier: Path
    config_path: Path
    config: XLoraConfig
    tensors: Mapping[str, TensorInfo]
    adapters: tuple[AdapterFiles, ...]
    ordering: Ordering | None
    tokenizers: tuple[Path, ...]

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The safetensors files: the classifier's, then those of the adapters."""
        return (self.classifier, *(files.weights for files in self.adapters))

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors."""
        own = sum(info.end - info.begin for info in self.tensors.values())
        return own + sum(files.size_bytes for files in self.adapters)

    def digest(self) -> str:
        """Read all of the files and return the SHA-256 of their content."""
        own = [self.classifier, self.config_path]
        if self.ordering is not None:
            own.append(self.config_path.parent / self.ordering.file)
        parts = [content_digest(own), *(files.digest() for files in self.adapters)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def plan(self, base: BaseModules) -> XLoraPlan:
        """Check it against a base; see ``plan_xlora``."""
        adapters = [(files.config, files.tensors) for files in self.adapters]
        return plan_xlora(self.config, self.tensors, adapters, self.ordering, base)


def read_files(path: Path) -> AdapterFiles | XLoraFiles:
    """Read the headers of an adapter or of an X-LoRA.

    Args:
        path: The directory, or the safetensors file in it.

    Raises:
        CorruptCheckpoint: A file is missing or broken.
        UnsupportedFormat: It is none that can be served; see ``LoraConfig`` and ``XLoraConfig``.
    """
    directory = path.parent if path.is_file() else path
    if (directory / XLORA_CONFIG_FILE).is_file():
        return _read_xlora(directory, XLORA_CONFIG_FILE, CLASSIFIER_FILE)
    config = directory / CONFIG_FILE
    if config.is_file() and read_object(config).get("peft_type") == "XLORA":
        return _read_xlora(directory, CONFIG_FILE, WEIGHTS_FILE)
    return read_adapter(path)


def adapter_directories(directory: Path) -> list[Path]:
    """The directories with an adapter in them, one or two levels below a directory; of many one too many at least."""
    found: list[Path] = []
    for child in _directories(directory):
        found += [place for place in (child, *_directories(child)) if (place / CONFIG_FILE).is_file()]
        if len(found) > MAX_ADAPTERS:
            break
    return found


def _directories(directory: Path) -> Iterator[Path]:
    names = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))[:MAX_ENTRIES]
    for name in names:
        place = directory / name
        if place.is_dir() and not place.is_symlink():
            yield place


def _read_xlora(directory: Path, config_file: str, classifier_file: str) -> XLoraFiles:
    config_path, classifier = directory / config_file, directory / classifier_file
    if not classifier.is_file():
        raise CorruptCheckpoint(
            f"{directory.name} has {config_file} of an X-LoRA, but no {classifier_file} beside it.",
            param=classifier_file,
        )
    with advising():
        content, tensors = read_object(config_path), read_header(classifier)
    config = XLoraConfig.from_dict(content, config_file, is_peft=config_file == CONFIG_FILE)
    ordering = _read_ordering(directory)
    if ordering is not None and ordering.names:
        config = replace(config, adapters=_ordered(config, ordering))
    known = adapter_directories(directory)
    if len(known) > MAX_ADAPTERS:
        raise CorruptCheckpoint(
            f"{directory.name} has more than {MAX_ADAPTERS} adapters in it; leave those of {config_file} there.",
            param="adapters",
        )
    adapters = []
    for name, path in config.adapters:
        place = _place_of(name, path, known, directory, config_file)
        with naming_adapter(name):
            adapters.append(read_adapter(place))
    return XLoraFiles(classifier, config_path, config, tensors, tuple(adapters), ordering, saved_tokenizers(directory))


def _read_ordering(directory: Path) -> Ordering | None:
    found = sorted(directory.glob(ORDERING_PATTERN))
    if len(found) > 1:
        raise CorruptCheckpoint(
            f"{directory.name} has {len(found)} ordering files ({found[0].name}, {found[1].name}); leave one.",
            param="ordering",
        )
    if not found:
        return None
    with advising():
        content = read_object(found[0])
    return Ordering.from_dict(content, found[0].name)


def _ordered(config: XLoraConfig, ordering: Ordering) -> tuple[tuple[str, str], ...]:
    paths = dict(config.adapters)
    if sorted(ordering.names) != sorted(paths):
        only = ", ".join(map(repr, sorted({*ordering.names} ^ {*paths})))[:200] or "one twice"
        raise CorruptCheckpoint(
            f"{ordering.file} and {config.file} name different adapters ({only}); the "
            "order must have each of them once.",
            param="order",
        )
    return tuple((name, paths[name]) for name in ordering.names)


def _place_of(name: str, path: str, known: Sequence[Path], directory: Path, file: str) -> Path:
    """The directory of an adapter, by the end of its path or by its name."""
    parts = PurePosixPath(path).parts
    ends = (parts[-2:], parts[-1:], (name,))
    for end in ends:
        found = [place for place in known if place.relative_to(directory).parts == end]
        found = found or [place for place in known if (place.name,) == end]
        if len(found) == 1:
            return found[0]
    there = ", ".join(str(place.relative_to(directory)) for place in known[:5]) or "none"
    raise CorruptCheckpoint(
        f"{file} names the adapter {name[:60]!r} ({path[:100]!r}), which isn't there once; put its directory beside "
        f"the file, named {name[:60]!r} (there is {there}).",
        param="adapters",
    )
