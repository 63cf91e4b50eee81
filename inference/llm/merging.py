"""Merge LoRA adapters into a base: while it is loaded, or into a checkpoint of its own."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from inference.engine.prefix_cache.model_key import file_digest
from inference.errors import InvalidRequest, UnsupportedFormat
from inference.llm.checkpoint_writing import (
    Entry,
    SourceFiles,
    check_target,
    partial_directory,
    publish,
    stored_entry,
    tensor_bytes,
    write_weights,
)
from inference.modelling.adapters.merging import MergedTensors, MergeInput, MergeRule
from inference.modelling.lora.modules import BaseModules
from inference.modelling.spec import ModelSpec
from inference.modelling.weights.files import TensorFiles
from models_registry.detection.adapter_files import TOKENIZER_FILE, read_adapter
from models_registry.detection.adapter_tokenizer import check_tokenizer

INDEX_SUFFIX = ".index.json"
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Merge:
    """Adapters to merge into a base.

    Attributes:
        adapters: Directories or files, each with its weight.
        rule: How their changes become one.
    """

    adapters: tuple[tuple[Path, float], ...]
    rule: MergeRule = MergeRule()  # noqa: RUF009 frozen


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge that was checked against its base.

    Attributes:
        tensors: What the base's tensors become.
        digest: Of the adapters' content, the weights and the rule.
    """

    tensors: MergedTensors
    digest: str


def prepare_merge(
    spec: ModelSpec, weight_files: Sequence[Path], merge: Merge, tokenizer: Path | None = None
) -> PreparedMerge:
    """Check a merge against its base; reads headers only.

    Args:
        tokenizer: The base's tokenizer.json; None: it has none, so that no adapter's is compared.

    Raises:
        CheckpointError: An adapter is broken, doesn't fit, or can't be merged.
        InvalidRequest: The rule can't be followed.
    """
    merge.rule.check(len(merge.adapters))
    base = BaseModules(spec, stored_shapes(spec, weight_files).__getitem__)
    inputs, parts = [], [json.dumps(asdict(merge.rule), sort_keys=True)]
    for path, weight in merge.adapters:
        files = read_adapter(path)
        check_tokenizer(files, tokenizer)
        inputs.append(MergeInput(files.plan(base), files.weights, weight))
        parts += [file_digest(files.weights, None), file_digest(files.config_path, None), repr(weight)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return PreparedMerge(MergedTensors(spec, inputs, merge.rule), digest)


def stored_shapes(spec: ModelSpec, weight_files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Shapes of a base's stored tensors, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    with TensorFiles(weight_files, encoded=spec.encoded) as files:
        for source in spec.parameters.values():
            shapes |= {name: files.shape_of(name) for name in source.tensor_names()}
    return shapes


def merge_checkpoint(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    source: SourceFiles,
    target: Path,
    merge: Merge,
    progress: Progress = lambda share, detail: None,
) -> int:
    """Write the checkpoint that a merge makes of its base; nothing is left behind if that fails.

    Args:
        spec: Of the base.
        weight_files: Of the base, safetensors.
        source: Its files.
        target: A new or an empty directory.
        merge: What is merged.
        progress: Gets the share done (0 to 1) and the tensor's name.

    Returns:
        Bytes of the written weights.

    Raises:
        CheckpointError, InvalidRequest: As ``prepare_merge``, or the target can't be written.
        UnsupportedFormat: The base holds codes in the place of a tensor that changes, or is no safetensors checkpoint.
    """
    if any(path.suffix != ".safetensors" for path in weight_files):
        raise UnsupportedFormat(
            f"{weight_files[0].name} isn't a safetensors file; merge into the checkpoint that it was made from.",
            param="model",
        )
    tokenizer = source.directory / TOKENIZER_FILE if TOKENIZER_FILE in source.others else None
    prepared = prepare_merge(spec, weight_files, merge, tokenizer)
    _check_plain(spec, prepared.tensors)
    check_target(target, sum(info.end - info.begin for info in source.tensors.values()))
    with partial_directory(target) as directory:
        names = [name for name in source.others if not name.endswith(INDEX_SUFFIX)]
        for name in names:
            shutil.copyfile(source.directory / name, directory / name)
        written, size = write_weights(directory, _entries(source, weight_files, prepared, progress))
        publish(directory, target, [*names, *written])
    progress(1.0, "")
    return size


def _check_plain(spec: ModelSpec, tensors: MergedTensors) -> None:
    encoded = sorted(tensors.names & {item.name for item in spec.encoded})
    if encoded:
        raise UnsupportedFormat(
            f"{encoded[0]} of the base is quantised, so that nothing can be merged into its file; merge into the "
            "checkpoint that it was made from, or merge while loading.",
            param=encoded[0],
        )


def _entries(
    source: SourceFiles, weight_files: Sequence[Path], prepared: PreparedMerge, progress: Progress
) -> list[Entry]:
    def pieces(number: int, entry: Entry) -> Iterator[bytes | memoryview]:
        progress(number / len(source.tensors), entry.name)
        if entry.name not in prepared.tensors.names:
            yield from entry.pieces()
            return
        with _reading(weight_files, entry.name) as value:
            yield tensor_bytes(prepared.tensors.change(entry.name, value))

    entries = [stored_entry(source.directory, name, info) for name, info in source.tensors.items()]
    return [replace(entry, pieces=partial(pieces, number, entry)) for number, entry in enumerate(entries)]


@contextmanager
def _reading(weight_files: Sequence[Path], name: str) -> Iterator[torch.Tensor]:
    with TensorFiles(weight_files, [[name]]) as files:
        files.move()
        yield files.read(name)


def parse_weighted(text: str) -> tuple[Path, float]:
    """DIRECTORY or DIRECTORY=WEIGHT.

    Raises:
        InvalidRequest: The weight is no number.
    """
    path, separator, number = text.rpartition("=")
    if not separator:
        return Path(text).expanduser(), 1.0
    try:
        weight = float(number)
    except ValueError:
        raise InvalidRequest(f"--adapter {text[:100]!r} must look like DIRECTORY or DIRECTORY=WEIGHT.") from None
    if not abs(weight) <= 1e3:
        raise InvalidRequest(f"--adapter has the weight {number[:20]}; it must be between -1000 and 1000.")
    return Path(path).expanduser(), weight
