"""Archives with hostile members, which nobody unpacks, and directories with links, devices and pipes."""

from __future__ import annotations

import io
import os
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.faults.artefacts.case import Case, write_llama

OUTSIDE = "escaped"
"""The name that every hostile member tries to make outside of its directory."""


def _zip(*names: str, **options: int) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            member = zipfile.ZipInfo(name)
            member.external_attr = options.get("mode", 0o100644) << 16
            archive.writestr(member, b"x" * options.get("size", 1))
    return found.getvalue()


def _tar(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, form: str = "w") -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode=form) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mode = kind, link, mode
        archive.addfile(member)
    return found.getvalue()


def _zip64_lie() -> bytes:
    content = bytearray(_zip("model.safetensors"))
    at = content.rindex(b"PK\x05\x06")
    content[at + 8 : at + 20] = struct.pack("<HHII", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return bytes(content)


@cache
def archives() -> dict[str, bytes]:
    """Contents by kind."""
    up = f"../{OUTSIDE}"
    return {
        "zip: parent": _zip(up),
        "zip: absolute": _zip(f"/tmp/{OUTSIDE}"),
        "zip: backslashes": _zip(f"..\\{OUTSIDE}"),
        "zip: symlink": _zip("model.safetensors", mode=0o120777),
        "zip: case clash": _zip("config.json", "CONFIG.JSON"),
        "zip: NUL in a name": _zip("a.safetensors").replace(b"a.safetensors", b"a\0safetensors"),
        "zip: 30 MiB of one letter": _zip("model.safetensors", size=30 << 20),
        "zip: in a zip": _zip("a.zip"),
        "zip: false numbers": _zip64_lie(),
        "zip: 20,000 members": _zip(*(f"m{number}" for number in range(20_000))),
        "zip: setuid": _zip("model.safetensors", mode=0o104755),
        "tar: parent": _tar(up),
        "tar: absolute": _tar(f"/tmp/{OUTSIDE}"),
        "tar: symlink": _tar("model.safetensors", tarfile.SYMTYPE, "/etc/passwd"),
        "tar: hard link": _tar("model.safetensors", tarfile.LNKTYPE, up),
        "tar: device": _tar("model.safetensors", tarfile.CHRTYPE),
        "tar: pipe": _tar("model.safetensors", tarfile.FIFOTYPE),
        "tar: setuid": _tar("model.safetensors", mode=0o4755),
        "tar.gz: parent": _tar(up, form="w:gz"),
        "tar.bz2: parent": _tar(up, form="w:bz2"),
        "tar.xz: parent": _tar(up, form="w:xz"),
        "7z": b"7z\xbc\xaf\x27\x1c" + bytes(100),
        "rar": b"Rar!\x1a\x07\x01\x00" + bytes(100),
        "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
        "GGUF": b"GGUF" + bytes(100),
    }


def _alone(name: str, kind: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(archives()[kind])


def _beside(name: str, kind: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        write_llama(directory)
        (directory / name).write_bytes(archives()[kind])

    return make


def _replaced(name: str, place: Callable[[Path], object]) -> Callable[[Path], None]:
    """A harmless checkpoint with one entry made by ``place``."""

    def make(directory: Path) -> None:
        write_llama(directory)
        (directory / name).unlink(missing_ok=True)
        place(directory / name)

    return make


def _socket(path: Path) -> None:
    """A socket; its path may be longer than a socket's name."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _linked(directory: Path) -> None:
    """As in a hub's cache: the files are links to blobs beside the directory."""
    write_llama(directory)
    blobs = directory.parent / f"{directory.name}-blobs"
    blobs.mkdir(exist_ok=True)
    for path in list(directory.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)


_ENTRIES: dict[str, Callable[[Path], object]] = {
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a directory": lambda path: path.symlink_to("/tmp"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to the processor's memory": lambda path: path.symlink_to("/proc/self/mem"),
    "a link to another format": lambda path: path.symlink_to("/etc/passwd"),
    "a link to the environment": lambda path: path.symlink_to("/proc/self/environ"),
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a directory": lambda path: path.mkdir(),
}

CASES = [
    *(
        Case(
            f"{kind} as model.safetensors",
            _alone("model.safetensors", kind),
            "not safetensors|model\\.safetensors",
            "CVE-2024-45436",
        )
        for kind in archives()
    ),
    *(Case(f"{kind} alone", _alone("model.zip", kind), "no weights") for kind in archives()),
    *(
        Case(f"{kind} named itself", _alone("model.tar", kind), "not a weight file", target="model.tar")
        for kind in archives()
    ),
    *(Case(f"{kind} beside harmless weights", _beside("more.zip", kind), None, "CVE-2026-7020") for kind in archives()),
    *(
        Case(f"model.safetensors is {what}", _replaced("model.safetensors", place), r"no weights|model\.safetensors")
        for what, place in _ENTRIES.items()
    ),
    *(
        Case(f"config.json is {what}", _replaced("config.json", place), r"config\.json")
        for what, place in _ENTRIES.items()
    ),
    *(
        Case(f"chat_template.jinja is {what}", _replaced("chat_template.jinja", place), r"chat_template\.jinja")
        for what, place in _ENTRIES.items()
        if "format" not in what and "directory" not in what
    ),
    Case("links into a hub's cache", _linked, None),
]
