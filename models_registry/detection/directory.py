"""Find the files of a checkpoint at a path: weights, configuration, tokenizer, chat templates.

Only names are looked at here, and the index of a sharded checkpoint. Kinds of files are on a list; the
pickle family is refused by name here and by content in ``safetensors_header``. Nothing is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, UnsupportedFormat
from inference.modelling.encodings.quantisation_config import SIDE_FILES
from inference.modelling.gguf.ggjt import GGJT_SUFFIXES, has_ggml_suffix, is_ggjt
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE
from inference.text.tokenisation.tiktoken_file import KIMI_FILE
from models_registry.detection.adapter_files import WEIGHTS_FILE
from models_registry.detection.json_file import read_object
from models_registry.detection.safetensors_header import MAX_TENSORS

Role = Literal["weights", "index", "config", "generation_config", "tokenizer", "tokenizer_config", "chat_template"]

MAX_DIRECTORY_ENTRIES = 20_000
MAX_SHARDS = 4096
MAX_INDEX_BYTES = 32 << 20

GGUF_SUFFIX = ".gguf"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".pt2", ".mar", ".joblib", ".npy", ".npz")
INDEX_SUFFIX = ".safetensors.index.json"

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,6})-of-(?P<total>\d{5,6})\.(?P<suffix>safetensors|gguf)")
_STEP = re.compile(r"(?P<prefix>.+)_step_(?P<step>\d{1,18})\.safetensors")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,254}")

_SIDE_FILES: Mapping[str, Role] = {
    "config.json": "config",
    **dict.fromkeys(SIDE_FILES, "config"),
    "preprocessor_config.json": "config",
    "generation_config.json": "generation_config",
    "tokenizer_config.json": "tokenizer_config",
    "special_tokens_map.json": "tokenizer_config",
    "tokenizer.json": "tokenizer",
    "tokenizer.model": "tokenizer",
    "tekken.json": "tokenizer",
    KIMI_FILE: "tokenizer",
    VOCABULARY_FILE: "tokenizer",
    "chat_template.jinja": "chat_template",
    "chat_template.json": "chat_template",
}


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint. ``path`` is relative to the checkpoint's directory."""

    path: str
    size_bytes: int
    role: Role


@dataclass(frozen=True, slots=True)
class CheckpointDirectory:
    """What ``resolve`` found.

    Attributes:
        directory: Absolute; what all names are relative to.
        files: All files that matter, weights first.
        weight_map: Tensor name to file, from an index; None: there is no index.
        choice: Why these weights were taken, for people.
        ambiguous: Whether other weights lie beside them that could have been meant.
    """

    directory: Path
    files: tuple[CheckpointFile, ...]
    weight_map: Mapping[str, str] | None
    choice: str
    ambiguous: bool = False

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Names of the weight files, in shard order."""
        return self.with_role("weights")

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are a GGUF or ggjt file, which has config and vocabulary in it."""
        return has_ggml_suffix(self.weight_files[0])

    def with_role(self, role: Role) -> tuple[str, ...]:
        """Names of the files with this role."""
        return tuple(file.path for file in self.files if file.role == role)

    def find(self, name: str) -> Path | None:
        """Absolute path of one of the files; None: it isn't there."""
        return self.directory / name if any(file.path == name for file in self.files) else None


def resolve(path: Path) -> CheckpointDirectory:
    """Find the files of the checkpoint at ``path``.

    A directory: ``model.safetensors``, else the files of an index, else a shard set, else the one
    ``…_final.safetensors``, else the highest ``…_step_N.safetensors`` (N as a number), else the only
    ``.safetensors`` file, else the only GGUF file or set of parts. A file: itself (with its sister shards), and the
    configuration beside it; a GGUF file has its configuration in it.

    Raises:
        UnsupportedFormat: No weights of a kind that is read, or several with no telling which.
        MissingTensor: Shards are missing; the message names them.
        CorruptCheckpoint: The path doesn't exist, or the index is broken.
    """
    path = path.expanduser().absolute()
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise CorruptCheckpoint(f"{str(path)[:300]} can't be read: {error.strerror}.", param="path") from None
    if is_directory:
        names = _listing(path)
        weights = _choose_weights(path, names)
        directory = path
    elif is_file:
        directory = path.parent
        names = _listing(directory)
        weights = _named_weights(path, names)
    else:
        what = "is neither a file nor a directory" if os.path.lexists(path) else "does not exist"
        raise CorruptCheckpoint(
            f"{str(path)[:300]} {what}; expected a directory with .safetensors files, or one such file, or a .gguf "
            "file.",
            param="path",
        )
    files = [_file(directory, name, "weights") for name in weights.names]
    if has_ggml_suffix(weights.names[0]):
        # What lies beside it may belong to another one: people keep many in one directory.
        return CheckpointDirectory(directory, tuple(files), None, weights.choice, weights.ambiguous)
    if weights.index is not None:
        files.append(_file(directory, weights.index, "index"))
    files += [_file(directory, name, role) for name, role in _SIDE_FILES.items() if name in names]
    files += [_file(directory, name, "tokenizer") for name in sorted(names) if name.endswith(".tiktoken")]
    return CheckpointDirectory(directory, tuple(files), weights.weight_map, weights.choice, weights.ambiguous)


@dataclass(frozen=True, slots=True)
class _Weights:
    names: tuple[str, ...]
    choice: str
    index: str | None = None
    weight_map: Mapping[str, str] | None = None
    ambiguous: bool = False


def _listing(directory: Path) -> frozenset[str]:
    names: set[str] = set()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(names) == MAX_DIRECTORY_ENTRIES:
                    raise UnsupportedFormat(
                        f"{directory} has more than {MAX_DIRECTORY_ENTRIES} entries; it isn't a checkpoint.",
                        param="path",
                    )
                if not _is_directory(entry):
                    names.add(entry.name)
    except OSError as error:
        raise CorruptCheckpoint(f"{directory} can't be read: {error.strerror}.", param="path") from None
    return frozenset(names)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; it is reported if it is needed
        return False


def _choose_weights(directory: Path, names: frozenset[str]) -> _Weights:
    candidates = sorted(name for name in names - {WEIGHTS_FILE} if name.endswith(".safetensors"))
    # A link into the void still shows in a listing; it is a missing file, to be reported as such.
    if "model.safetensors" in candidates:
        return _Weights(("model.safetensors",), "model.safetensors")
    indices = sorted(name for name in names if name.endswith(INDEX_SUFFIX))
    if indices:
        index = "model" + INDEX_SUFFIX if "model" + INDEX_SUFFIX in indices else indices[0]
        if index != "model" + INDEX_SUFFIX and len(indices) > 1:
            raise _ambiguous(directory, indices, "index files")
        return _indexed(directory, index, names)
    if not candidates:
        return _choose_gguf(directory, names)
    stems = sorted({match["stem"] + "-of-" + match["total"] for match in map(_SHARD.fullmatch, candidates) if match})
    if len(stems) > 1:
        raise _ambiguous(directory, stems, "shard sets")
    if stems:
        return _shard_set(next(match for match in map(_SHARD.fullmatch, candidates) if match), names)
    finals = [name for name in candidates if name.endswith("_final.safetensors")]
    if len(finals) > 1:
        raise _ambiguous(directory, finals, "final files")
    if finals:
        beside = len(candidates) - 1
        return _Weights((finals[0],), f"the _final file; {beside} other .safetensors files lie beside it")
    steps = [(match["prefix"], int(match["step"]), match[0]) for match in map(_STEP.fullmatch, candidates) if match]
    prefixes = sorted({prefix for prefix, _, _ in steps})
    if len(prefixes) > 1:
        raise _ambiguous(directory, prefixes, "training runs")
    if steps:
        _, step, name = max(steps, key=lambda item: item[1])
        return _Weights((name,), f"step {step}, the highest of {len(steps)}; there is no _final file", ambiguous=True)
    if len(candidates) > 1:
        raise _ambiguous(directory, candidates, ".safetensors files")
    return _Weights((candidates[0],), "the only .safetensors file")


def _choose_gguf(directory: Path, names: frozenset[str]) -> _Weights:
    """The only GGUF model: a file, or a set of parts. Projectors of images and sounds are no models."""
    candidates = [
        name for name in sorted(names) if name.lower().endswith(GGUF_SUFFIX) and not name.lower().startswith("mmproj")
    ]
    if not candidates:
        return _choose_ggjt(directory, names)
    parts = [match for match in map(_SHARD.fullmatch, candidates) if match]
    stems = sorted({match["stem"] + "-of-" + match["total"] for match in parts})
    stems += [name for name in candidates if not _SHARD.fullmatch(name)]
    if len(stems) > 1:
        raise _ambiguous(directory, stems, "GGUF files")
    return _shard_set(parts[0], names) if parts else _Weights((candidates[0],), "the only GGUF file")


def _choose_ggjt(directory: Path, names: frozenset[str]) -> _Weights:
    """The only file in GGML's form before GGUF."""
    likely = [name for name in sorted(names) if name.lower().endswith(GGJT_SUFFIXES)][:MAX_SHARDS]
    candidates = [name for name in likely if is_ggjt(directory / name)]
    if not candidates:
        raise _no_weights(directory, names)
    if len(candidates) > 1:
        raise _ambiguous(directory, candidates, "ggjt files")
    return _Weights((candidates[0],), "the only ggjt file")


def _named_weights(path: Path, names: frozenset[str]) -> _Weights:
    name = path.name
    if name.endswith(INDEX_SUFFIX):
        return _indexed(path.parent, name, names)
    if name.lower().endswith(GGJT_SUFFIXES) and is_ggjt(path):
        return _Weights((name,), "the file that was named")
    if not name.endswith(".safetensors") and not name.lower().endswith(GGUF_SUFFIX):
        raise _refusal(name)
    if name == WEIGHTS_FILE:
        raise adapter_refusal()
    shard = _SHARD.fullmatch(name)
    if shard is not None and shard["suffix"] == "gguf":
        return _shard_set(shard, names)
    if shard is not None:
        index = shard["stem"] + INDEX_SUFFIX
        return _indexed(path.parent, index, names) if index in names else _shard_set(shard, names)
    return _Weights((name,), "the file that was named")


def _shard_set(shard: re.Match[str], names: frozenset[str]) -> _Weights:
    stem, total = shard["stem"], int(shard["total"])
    if not 1 <= total <= MAX_SHARDS:
        raise CorruptCheckpoint(f"{shard[0]}: {total} shards; 1 to {MAX_SHARDS} are allowed.", param=shard[0])
    width = len(shard["total"])
    end = f"-of-{shard['total']}.{shard['suffix']}"
    shards = [f"{stem}-{number:0{width}d}{end}" for number in range(1, total + 1)]
    _require(shards, names)
    return _Weights(tuple(shards), f"{total} shards by their names (there is no index)")


def _indexed(directory: Path, index: str, names: frozenset[str]) -> _Weights:
    weight_map = read_object(directory / index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptCheckpoint(f"{index} has no weight_map.", param=index)
    if len(weight_map) > MAX_TENSORS:
        raise CorruptCheckpoint(f"{index} lists {len(weight_map)} tensors; the limit is {MAX_TENSORS}.", param=index)
    shards: set[str] = set()
    for name, file in weight_map.items():
        if isinstance(file, str) and file in shards:
            continue
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            raise CorruptCheckpoint(
                f"{index}: tensor {name[:80]} is said to be in {str(file)[:80]!r}; it must be a plain file name in the "
                "same directory.",
                param=index,
            )
        if not file.endswith(".safetensors"):
            raise _refusal(file)
        shards.add(file)
    if len(shards) > MAX_SHARDS:
        raise CorruptCheckpoint(f"{index} lists {len(shards)} files; the limit is {MAX_SHARDS}.", param=index)
    _require(sorted(shards), names)
    return _Weights(tuple(sorted(shards)), f"{len(shards)} files of {index}", index, weight_map)


def _require(files: Sequence[str], names: frozenset[str]) -> None:
    missing = [name for name in files if name not in names]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise MissingTensor(
            f"{len(missing)} of {len(files)} weight files are missing: {shown}; complete the download.",
            param=missing[0],
        )


def _file(directory: Path, name: str, role: Role) -> CheckpointFile:
    try:
        return CheckpointFile(name, (directory / name).stat().st_size, role)
    except OSError as error:
        raise CorruptCheckpoint(f"{name} can't be read: {error.strerror}.", param=name) from None


def _refusal(name: str) -> CheckpointError:
    """Why a file of this name isn't read."""
    suffix = Path(name).suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        return UnsupportedFormat(
            f"{name[:120]} is a pickle by its name; pickles can run code when they are opened and are never read. "
            "Convert it to safetensors.",
            param=name[:120],
        )
    return UnsupportedFormat(
        f"{name[:120]} is not a weight file that is read here; expected .safetensors or .gguf.", param=name[:120]
    )


def adapter_refusal() -> UnsupportedFormat:
    """The error for an adapter in the place of a model."""
    return UnsupportedFormat(
        f"{WEIGHTS_FILE} is an adapter and no model; name its base, and beside it the adapter's directory on the "
        "server's machine (blazr adapter add BASE DIR, or without a server --adapter DIR).",
        param=WEIGHTS_FILE,
    )


def _no_weights(directory: Path, names: frozenset[str]) -> CheckpointError:
    for name in sorted(names):
        if name.lower().endswith(PICKLE_SUFFIXES):
            refusal = _refusal(name)
            return UnsupportedFormat(
                f"There are no .safetensors files in {directory.name}: {refusal.message}", param=name
            )
    if WEIGHTS_FILE in names:
        return adapter_refusal()
    return UnsupportedFormat(
        f"There are no weights in {directory}: looked for model.safetensors, *{INDEX_SUFFIX}, "
        "*-00001-of-*.safetensors, *_final.safetensors, *_step_N.safetensors and *.gguf.",
        param="path",
    )


def _ambiguous(directory: Path, names: Sequence[str], what: str) -> UnsupportedFormat:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return UnsupportedFormat(
        f"There are {len(names)} {what} in {directory.name} ({shown}); name the file to use.", param="path"
    )
