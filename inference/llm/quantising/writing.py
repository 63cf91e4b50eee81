"""Write a quantised checkpoint: a safetensors directory with codes and scales in rows, the plan and its figures."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.host.units import format_bytes
from inference.llm.quantising.parts import HEADER_BYTES
from inference.modelling.encodings.blazr import CODES, METHOD, SCALES
from inference.modelling.encodings.quantisation_config import BLAZR_VERSION
from inference.modelling.families.checks import TIED_HEAD
from inference.modelling.families.config import TensorInfo
from inference.modelling.layers.coded import quantised_rows
from inference.modelling.quantisation import FormName
from inference.modelling.spec import ModelSpec, Source

WEIGHTS_FILE = "model.safetensors"
PLAN_FILE = "quantisation.json"
CONFIG_FILE = "config.json"

_COPY_BYTES = 16 << 20
_LENGTH_BYTES = 8
_DTYPES = {torch.int8: "I8", torch.uint8: "U8", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The checkpoint that is quantised.

    Attributes:
        directory: Its directory.
        tensors: Header entries of all its files.
        others: Names of config, tokenizer and template files, which are copied.
    """

    directory: Path
    tensors: Mapping[str, TensorInfo]
    others: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of the written file; ``pieces`` gives its bytes."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]


def check_target(directory: Path, size_bytes: int) -> None:
    """Refuse a target that can't be written, before anything is computed for it.

    Args:
        directory: The target.
        size_bytes: Minimum bytes of the weights' file.

    Raises:
        InvalidRequest: The target exists, can't be created, or has too little space.
    """
    with _partial_directory(directory) as partial:
        free_bytes = shutil.disk_usage(partial).free
    if free_bytes < size_bytes:
        raise InvalidRequest(
            f"the disk of {str(directory)[:200]} has {format_bytes(free_bytes)} free, the checkpoint takes "
            f"{format_bytes(size_bytes)}; free some, or name another directory with -o.",
            param="output",
        )


@contextmanager
def _partial_directory(target: Path) -> Iterator[Path]:
    """Create the target with a directory for unfinished files in it.

    At the end the latter is removed, and so are the directories that were created and are still empty.

    Raises:
        InvalidRequest: The target isn't new or empty, or the body couldn't write to it.
        CorruptCheckpoint: The body couldn't read a file outside of it.
    """
    target = target.absolute()
    partial = target / f".partial-{os.getpid()}"
    created: list[Path] = []
    try:
        _remove_stale_partial_directories(target)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InvalidRequest(
                f"{str(target)[:200]} exists and isn't an empty directory; name another one with -o.", param="output"
            )
        created = [directory for directory in (target, *target.parents) if not directory.exists()]
        partial.mkdir(parents=True)
        yield partial
    except OSError as error:
        at = target if error.filename is None else Path(error.filename)
        if not (at.is_relative_to(target) or target.is_relative_to(at)):
            raise CorruptCheckpoint(f"{at} can't be read: {error.strerror}.", param=at.name) from None
        raise InvalidRequest(
            f"{str(target)[:200]} can't be written: {error.strerror or error}; name another one with -o.",
            param="output",
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for directory in created:
            with suppress(OSError):
                directory.rmdir()


def _remove_stale_partial_directories(target: Path) -> None:
    """Remove directories of killed processes: the target would count as not empty. Pids are those of this machine."""
    for left in target.glob(".partial-*"):
        try:
            os.kill(int(left.name.removeprefix(".partial-")), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # not ours, or another account's process writes here


def write_checkpoint(
    target: Path,
    source: SourceFiles,
    spec: ModelSpec,
    forms: Mapping[str, FormName],
    weight_of: Callable[[str], torch.Tensor],
    *,
    measured: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> int:
    """Write the directory; nothing is left behind if that fails.

    Args:
        target: New, or an empty directory.
        source: The checkpoint that is quantised.
        spec: Its specification.
        forms: Form of each quantised parameter.
        weight_of: Returns the stored values of a parameter, float32 or bfloat16.
        measured: Figures for config.json.
        plan: Content of ``quantisation.json``.

    Returns:
        Bytes of the weights' file.
    """
    with _partial_directory(target) as partial:
        names = [name for name in source.others if name != CONFIG_FILE]
        for name in names:
            shutil.copyfile(source.directory / name, partial / name)
        config = _config(source, spec, forms, measured)
        (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (partial / PLAN_FILE).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        entries = _entries(source, spec, forms, weight_of)
        size = _write_tensors(partial / WEIGHTS_FILE, entries, _header_bytes(source, spec, forms))
        for name in (*names, PLAN_FILE, WEIGHTS_FILE, CONFIG_FILE):  # the config last: it makes a checkpoint of them
            (partial / name).rename(target / name)
    return size


def _config(
    source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName], measured: Mapping[str, Any]
) -> dict[str, Any]:
    values = json.loads((source.directory / CONFIG_FILE).read_bytes()) if CONFIG_FILE in source.others else {}
    tensors = {piece.name: form for name, form in forms.items() for piece in spec.parameters[name].pieces}
    stated = {
        "quant_method": METHOD,
        "version": BLAZR_VERSION,
        "stored_dtype": spec.dtype,
        "tensors": tensors,
        "measured": dict(measured),
    }
    return {**values, "quantization_config": stated}


def _header_bytes(source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName]) -> int:
    """Return the bytes reserved for the header: at least its size, a multiple of eight."""
    names = [*source.tensors]
    names += [name + CODES + SCALES for parameter in forms for name in spec.parameters[parameter].tensor_names()]
    return -(-(HEADER_BYTES + sum(len(name) + HEADER_BYTES for name in names)) // _LENGTH_BYTES) * _LENGTH_BYTES


def _entries(
    source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName], weight_of: Callable[[str], torch.Tensor]
) -> Iterator[_Entry]:
    """Yield all tensors of the file: unquantised ones, then codes and scales.

    A copy of a tied head is left out, because the embedding that it copies changes.
    """
    in_codes = {name for parameter in forms for name in spec.parameters[parameter].tensor_names()}
    for name, info in source.tensors.items():
        if name not in in_codes and not (spec.tie_word_embeddings and TIED_HEAD.fullmatch(name)):
            yield _stored_entry(source.directory, name, info)
    for parameter, form in forms.items():
        codes, scales = (part.cpu() for part in quantised_rows(weight_of(parameter), form))
        for name, its_codes, its_scales in _by_tensor(spec.parameters[parameter], codes, scales, source.tensors):
            yield _entry(name + CODES, its_codes)
            yield _entry(name + SCALES, its_scales)


def _by_tensor(
    source: Source, codes: torch.Tensor, scales: torch.Tensor, tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield each tensor of the checkpoint with its rows of a parameter's codes and scales."""
    stacks = [(codes, scales)] if source.num_experts is None else list(zip(codes, scales, strict=True))
    for number, (its_codes, its_scales) in enumerate(stacks):
        start = 0
        for piece in source.pieces:
            name = piece.name.replace("{e}", str(number)) if source.num_experts is not None else piece.name
            stop = start + tensors[name].shape[0]
            yield name, its_codes[start:stop], its_scales[start:stop]
            start = stop


def _entry(name: str, tensor: torch.Tensor) -> _Entry:
    content = cast("Any", tensor.contiguous().view(torch.uint8).flatten().numpy())
    return _Entry(name, _DTYPES[tensor.dtype], tensor.shape, tensor.nbytes, lambda: iter([memoryview(content)]))


def _stored_entry(directory: Path, name: str, info: TensorInfo) -> _Entry:
    def pieces() -> Iterator[bytes]:
        with (directory / info.file).open("rb") as file:
            file.seek(info.begin)
            left = info.end - info.begin
            while left:
                piece = file.read(min(left, _COPY_BYTES))
                if not piece:
                    raise CorruptCheckpoint(f"{info.file} ends before its tensors do.", param=info.file)
                left -= len(piece)
                yield piece

    return _Entry(name, info.dtype, info.shape, info.end - info.begin, pieces)


def _write_tensors(path: Path, entries: Iterator[_Entry], header_bytes: int) -> int:
    """Write a safetensors file in one pass over the entries; the header is written last, into its reserved bytes.

    Source of the layout: https://huggingface.co/docs/safetensors/index#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    with path.open("wb") as file:
        file.seek(_LENGTH_BYTES + header_bytes)
        for entry in entries:
            header[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [position, position + entry.size],
            }
            for piece in entry.pieces():
                file.write(piece)
            position += entry.size
        content = json.dumps(header, separators=(",", ":")).encode()
        assert len(content) <= header_bytes, (len(content), header_bytes)
        file.seek(0)
        file.write(header_bytes.to_bytes(_LENGTH_BYTES, "little") + content.ljust(header_bytes))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size
