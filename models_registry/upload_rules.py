"""Check the names, kinds and sizes of files before their upload begins."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from inference.errors import CorruptCheckpoint, InvalidRequest, RequestTooLarge, UnsupportedFormat
from inference.modelling.encodings.quantisation_config import SIDE_FILES
from inference.modelling.gguf.ggjt import MAGIC
from inference.text.tokenisation.tiktoken_file import KIMI_FILE
from models_registry.curves import PLAN_FILE
from models_registry.detection.adapter_files import WEIGHTS_FILE
from models_registry.detection.directory import adapter_refusal
from models_registry.detection.safetensors_header import MAX_HEADER_BYTES

CHUNK_BYTES = 2 << 20
"""Largest piece per request; below Django's in-memory limit, so that a body never spools to the system's /tmp."""

MAX_FILES = 1000
MAX_NAME_CHARS = 200
MEBIBYTE = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")

_EXACT: dict[str, int] = {
    "config.json": MEBIBYTE,
    "generation_config.json": MEBIBYTE,
    **dict.fromkeys(SIDE_FILES, MEBIBYTE),
    "preprocessor_config.json": MEBIBYTE,
    "tokenizer.json": 32 * MEBIBYTE,
    "tokenizer.model": 32 * MEBIBYTE,
    "tekken.json": 32 * MEBIBYTE,
    KIMI_FILE: 32 * MEBIBYTE,
    "tokenizer_config.json": 8 * MEBIBYTE,
    "special_tokens_map.json": MEBIBYTE,
    "added_tokens.json": 8 * MEBIBYTE,
    "vocab.json": 32 * MEBIBYTE,
    "merges.txt": 32 * MEBIBYTE,
    "chat_template.jinja": MEBIBYTE,
    "chat_template.json": MEBIBYTE,
    "training_config.json": MEBIBYTE,
    "README.md": MEBIBYTE,
    PLAN_FILE: 8 * MEBIBYTE,
}
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".ggml")
_SUFFIXES: dict[str, int | None] = {
    ".safetensors": None,  # only the upload's total limits it
    ".gguf": None,
    ".ggml": None,
    ".safetensors.index.json": 32 * MEBIBYTE,
    ".tiktoken": 32 * MEBIBYTE,
    ".meta.json": MEBIBYTE,
}


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """A file as the uploader declares it, before sending it.

    Attributes:
        sha256: In lower-case hexadecimal; empty: not declared, so the file isn't compared.
    """

    name: str
    size_bytes: int
    sha256: str = ""


def accepted_kinds() -> list[str]:
    """Return the names and suffixes of accepted files, for people and for the page."""
    return [*_SUFFIXES, *_EXACT]


def is_accepted(name: str) -> bool:
    """Whether files of this name are taken, in some size."""
    return _NAME.match(name) is not None and (name in _EXACT or name.endswith(tuple(_SUFFIXES)))


def check_declaration(files: Sequence[DeclaredFile], *, max_bytes: int) -> int:
    """Check all files of an upload before it begins; returns the total of their sizes.

    Args:
        max_bytes: Limit of the total.

    Raises:
        InvalidRequest: There is no file or no weights, a name or digest is wrong, or a name occurs twice.
        UnsupportedFormat: A kind of file isn't accepted.
        RequestTooLarge: There are too many files or too many bytes.
    """
    if not files:
        raise InvalidRequest("the upload lists no files; choose a checkpoint's files.", param="files")
    if len(files) > MAX_FILES:
        raise RequestTooLarge(f"the upload lists {len(files)} files, at most {MAX_FILES} are taken.", param="files")
    seen: set[str] = set()
    for file in files:
        _check_file(file)
        # On some filesystems, names that differ only in case are the same file.
        if file.name.lower() in seen:
            raise InvalidRequest(f"the file {file.name} is listed twice.", param="files")
        seen.add(file.name.lower())
    if not any(file.name.endswith(WEIGHT_SUFFIXES) for file in files):
        raise UnsupportedFormat(
            "the upload has no .safetensors, .gguf or .ggml file; weights are taken in these formats only."
        )
    if all(file.name == WEIGHTS_FILE for file in files if file.name.endswith(WEIGHT_SUFFIXES)):
        raise adapter_refusal()
    total = sum(file.size_bytes for file in files)
    if total > max_bytes:
        raise RequestTooLarge(
            f"the upload has {total} bytes, the limit is {max_bytes}; raise BLAZR_MAX_UPLOAD_BYTES or register the "
            "directory on the server instead.",
            param="files",
        )
    return total


def _check_file(file: DeclaredFile) -> None:
    if not _NAME.match(file.name) or len(file.name) > MAX_NAME_CHARS or ".." in file.name:
        raise InvalidRequest(
            f"the file name {file.name[:80]!r} is not taken; names have up to {MAX_NAME_CHARS} letters, digits, dots, "
            "dashes, underscores and plus signs, and no folders.",
            param="files",
        )
    if file.name.lower().endswith(".bin") and "ggml" in file.name.lower():
        raise UnsupportedFormat(
            f"{file.name} is a pickle by the end of its name; if it is a ggjt file, rename it to end in .ggml.",
            param=file.name,
        )
    if file.name.lower().endswith(_PICKLES):
        raise UnsupportedFormat(
            f"{file.name} is a Python pickle by its name; pickles can run code and are never read. "
            "Convert it to .safetensors.",
            param=file.name,
        )
    limit = _limit(file.name)
    if not 1 <= file.size_bytes <= limit:
        shown = f"{file.name} has {file.size_bytes} bytes"
        if file.size_bytes < 1:
            raise InvalidRequest(f"{shown}; an empty file is not taken.", param=file.name)
        raise RequestTooLarge(f"{shown}, the limit for this kind of file is {limit}.", param=file.name)
    if file.sha256 and not _SHA256.match(file.sha256):
        raise InvalidRequest(f"sha256 of {file.name} is not 64 lower-case hexadecimal digits.", param=file.name)


def _limit(name: str) -> int:
    if name in _EXACT:
        return _EXACT[name]
    for suffix, limit in _SUFFIXES.items():
        if name.endswith(suffix):
            return (1 << 62) if limit is None else limit
    raise UnsupportedFormat(
        f"{name} is not a file of a checkpoint; taken are {', '.join(accepted_kinds())}.", param=name
    )


def check_head(name: str, size_bytes: int, piece: bytes) -> None:
    """Refuse a wrong file by its first piece, before a long upload; the inspection does the full check.

    Raises:
        CorruptCheckpoint: It doesn't begin as a file of this name and size does.
    """
    for suffix, magic, kind in ((".gguf", b"GGUF", "GGUF"), (".ggml", MAGIC, "ggjt")):
        if not name.endswith(suffix):
            continue
        if not piece.startswith(magic[: len(piece)]):
            raise CorruptCheckpoint(f"{name} doesn't begin like a {kind} file; it is of another format.", param=name)
        return
    if len(piece) < 9:
        return
    (header,) = struct.unpack("<Q", piece[:8])
    if piece[8:9] != b"{" or header > MAX_HEADER_BYTES or header + 8 > size_bytes:
        raise CorruptCheckpoint(
            f"{name} doesn't begin like a safetensors file (header of {header} bytes, limit "
            f"{min(MAX_HEADER_BYTES, size_bytes - 8)}); it is damaged or of another format.",
            param=name,
        )
