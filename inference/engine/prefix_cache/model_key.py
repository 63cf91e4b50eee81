"""Build the key of a model's states from the weights' bytes, the spec and the number formats."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from inference.modelling.spec import ModelSpec

READ_BYTES = 1 << 22


def model_key(spec: ModelSpec, weight_files: Sequence[Path], numbers: str, *, memo_dir: Path) -> str:
    """Return a key that differs whenever the states of the same tokens may differ.

    Args:
        spec: The inspected spec, with the user's overrides.
        weight_files: All weight files of the checkpoint.
        numbers: Dtype, quantisation, device and block size.
        memo_dir: Directory that caches digests, so that an unchanged file is read once only.
    """
    digests = [file_digest(path, memo_dir) for path in weight_files]
    return json.dumps([spec.without_head().to_dict(), sorted(digests), numbers], sort_keys=True)


def file_digest(path: Path, memo_dir: Path | None) -> str:
    """Return the SHA-256 of a file's bytes, cached in ``memo_dir`` by path, size, inode and modification time."""
    if memo_dir is None:
        return _digest_of(path)
    status = path.stat()
    place = str(path.resolve())
    identity = [place, status.st_size, status.st_ino, status.st_mtime_ns]
    memo = memo_dir / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"
    try:
        known = json.loads(memo.read_text())
        if known["identity"] == identity:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    digest = _digest_of(path)
    try:
        memo_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = memo.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps({"identity": identity, "sha256": digest}))
        partial.replace(memo)
    except OSError:
        pass  # DiskTier reports a cache directory that can't be written
    return digest


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
