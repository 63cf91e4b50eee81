"""Wheels with small model files, in a folder that pip takes for the index."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def record_line(name: str, data: bytes) -> str:
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def wheel_bytes(
    name: str,
    files: Mapping[str, bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    record: Mapping[str, bytes] | None = None,
) -> bytes:
    """A wheel of ``files``.

    Args:
        record: Contents that RECORD has digests of; None: those of ``files``.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {item}\n" for item in requires)
    content = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": WHEEL}
    recorded = record or files
    content[f"{info}/RECORD"] = "".join(record_line(path, data) for path, data in recorded.items()).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return buffer.getvalue()


WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Index:
    """A folder of wheels, and no other index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, files: Mapping[str, bytes], *, version: str = "1.0", requires: Sequence[str] = ()) -> Path:
        """Put a wheel into it."""
        path = self.folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        path.write_bytes(wheel_bytes(name, files, version=version, requires=requires))
        return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """pip's index is a folder of this test, and the cache of wheels another one."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Index(folder)
