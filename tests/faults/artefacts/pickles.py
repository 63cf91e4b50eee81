"""Pickles under every name, renamed, and packed: each would make a file if anybody opened it."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import lzma
import marshal
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.artefacts.case import Case, write_llama
from tests.models_registry.detection.builders import LLAMA_CONFIG, write_json

CANARY = "canary"
"""The file that an opened pickle would make in the case's directory."""


class _Call:
    """Unpickling this calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._made = (function, arguments)

    def __reduce__(self) -> Any:
        return self._made


def _gadgets(canary: str) -> dict[str, Any]:
    code = f"open({canary!r}, 'w').close()"
    return {
        "open": _Call(open, canary, "w"),
        "os.system": _Call(os.system, f"touch {canary}"),
        "eval": _Call(eval, code),
        "exec": _Call(exec, code),
        "os.mkdir": _Call(os.mkdir, canary),
        "nested": {"state_dict": [_Call(open, canary, "w")]},
    }


def _zip(data: bytes, **members: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", b"3\n")
        for name, content in members.items():
            archive.writestr(name, content)
    return found.getvalue()


def _tar(data: bytes) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name in ("pickle", "storages", "tensors", "sys_info"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return found.getvalue()


def _numpy(value: Any) -> bytes:
    found = io.BytesIO()
    np.save(found, np.array([value], dtype=object), allow_pickle=True)
    return found.getvalue()


def payloads(canary: str) -> dict[str, bytes]:
    """Contents by kind."""
    found: dict[str, bytes] = {}
    for name, gadget in _gadgets(canary).items():
        for protocol in (0, 2, 4, 5):
            found[f"pickle of {name}, protocol {protocol}"] = pickle.dumps(gadget, protocol=protocol)
    plain = found["pickle of open, protocol 2"]
    found |= {
        "PyTorch's zip": _zip(plain),
        "PyTorch's zip with constants": _zip(plain, **{"archive/constants.pkl": plain}),
        "PyTorch's legacy tar": _tar(plain),
        "PyTorch's legacy magic number": pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001) + plain,
        "NumPy's object array": _numpy(_gadgets(canary)["open"]),
        "NumPy's zip": _zip(plain, **{"a.npy": _numpy(_gadgets(canary)["open"])}),
        "gzip": gzip.compress(plain),
        "zlib": zlib.compress(plain),
        "bzip2": bz2.compress(plain),
        "xz": lzma.compress(plain),
        "base64": base64.b64encode(plain),
        "marshal": marshal.dumps(compile(f"open({canary!r}, 'w')", "x", "exec")),
        "opcodes before a pickle": b"(lp0\n" + found["pickle of open, protocol 0"],
        "text that is a pickle": f"cbuiltins\nopen\n(S'{canary}'\nS'w'\ntR.".encode(),
        "a pickle behind a length": struct.pack("<Q", len(plain)) + plain,
        "a pickle behind a brace": struct.pack("<Q", len(plain) + 1) + b"{" + plain,
        "a pickle with a safetensors head": struct.pack("<Q", 2) + b"{}" + plain,
    }
    return found


NAMES = (
    "pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "model.pkl", "model.pickle", "model.npy", "model.npz",
    "model.mar", "model.pt2", "model.joblib", "model.PT", "consolidated.00.pth",
)  # fmt: skip
_KINDS = list(payloads("x"))
_WITH_MAGIC = ("protocol 2", "protocol 4", "protocol 5", "zip", "tar", "magic", "NumPy", "gzip", "bzip2", "xz")
_ADVISORIES = {"PyTorch's legacy tar": "CVE-2025-32434", "PyTorch's zip": "CVE-2026-24747"}


def _file(name: str, kind: str, *, config: bool = True) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        if config:
            write_json(directory / "config.json", LLAMA_CONFIG)
        (directory / name).write_bytes(payloads(str(directory / CANARY))[kind])

    return make


def _beside(name: str, kind: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        write_llama(directory)
        (directory / name).write_bytes(payloads(str(directory / CANARY))[kind])

    return make


def _content(kind: str) -> str:
    return (
        "not safetensors" if any(word in kind for word in _WITH_MAGIC) and "zlib" not in kind else r"model\.safetensors"
    )


CASES = [
    *(
        Case(f"{kind} as {name}", _file(name, kind), "pickle")
        for number, kind in enumerate(_KINDS)
        for name in (
            NAMES if kind == "PyTorch's zip" else (NAMES[number % len(NAMES)], NAMES[(number + 5) % len(NAMES)])
        )
    ),
    *(
        Case(
            f"{kind} as model.safetensors",
            _file("model.safetensors", kind),
            _content(kind),
            _ADVISORIES.get(kind, "CVE-2025-14924"),
        )
        for kind in _KINDS
    ),
    *(Case(f"{name} named itself", _file(name, "PyTorch's zip"), "pickle", target=name) for name in NAMES),
    *(
        Case(f"{kind} beside harmless weights", _beside("pytorch_model.bin", kind), None)
        for kind in ("PyTorch's zip", "text that is a pickle")
    ),
    *(
        Case(f"a pickle as {name}", _beside(name, "pickle of open, protocol 0"), name.replace(".", r"\."))
        for name in (
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.json",
        )
    ),
]
