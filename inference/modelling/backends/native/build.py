"""Compile the native kernels for this processor: ``python -m inference.modelling.backends.native.build``.

The library lies in a cache folder of the user under a name made of everything it depends on (sources, flags, torch,
processor), so a changed one is never loaded by mistake, and several checkouts don't disturb each other.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Variant = Literal["native", "generic"]
"""``native`` uses all instructions of this processor; ``generic`` those that every processor of its kind has. It is
there to check the plain form of each kernel, so it is compiled for little compiling, not for speed."""

SOURCES = Path(__file__).parent / "src"
_FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-fopenmp",
    "-DNDEBUG",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wall",
    "-Wno-psabi",
)
_COMMON_HEADERS = ("ATen/ops/empty.h", "torch/library.h")
"""Nearly every source includes them, and reading them takes longer than compiling most of the sources."""
_COMPILE_TIMEOUT_S = 600
NO_COMPILER = "No C++ compiler was found (c++, g++ or clang++). To make blazr fast, get one: apt-get install g++."


class BuildFailed(Exception):
    """There is no compiler, or it refused; the message is its own."""


def build(variant: Variant = "native", *, force: bool = False) -> Path:
    """Compile the library, unless it is there.

    Returns:
        Its path.

    Raises:
        BuildFailed: It can't be compiled here.
    """
    target = library_path(variant)
    if target.exists() and not force:
        return target
    compiler = find_compiler()
    if compiler is None:
        raise BuildFailed(NO_COMPILER)
    torch_folder = _torch_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        command = _compile_command(compiler, variant, torch_folder)
        header = _precompile_headers(command, Path(work))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = list(pool.map(lambda source: _compile(command, header, source, Path(work)), _source_files()))
        made = Path(work) / target.name
        libraries = torch_folder / "lib"
        _run(
            [
                compiler,
                "-shared",
                "-fopenmp",
                *map(str, objects),
                "-o",
                str(made),
                f"-L{libraries}",
                "-lc10",
                "-ltorch_cpu",
            ]
        )
        made.replace(target)  # whole or not at all, also when two processes build at the same time
    return target


def library_path(variant: Variant = "native") -> Path:
    """Where the library for this processor and these sources is, if it has been built."""
    digest = hashlib.sha256()
    for part in (variant, *_variant_flags(variant), *_FLAGS, platform.machine(), metadata.version("torch")):
        digest.update(part.encode() + b"\0")
    if variant == "native":
        digest.update(_processor_flags().encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return _cache_folder() / f"libblazr-{variant}-{digest.hexdigest()[:20]}.so"


def find_compiler() -> str | None:
    """``$CXX``, or the first of the usual names that is installed."""
    from_environment = os.environ.get("CXX", "").split()
    for name in (*from_environment[:1], "c++", "g++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            return found
    return None


def variant_of_environment() -> str:
    """``BLAZR_NATIVE``, for processes that read no settings."""
    return os.environ.get("BLAZR_NATIVE") or "auto"


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "blazr" / "native"


def _source_files() -> list[Path]:
    # The greatest first, so that the processors end together.
    return sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)


def _compile_command(compiler: str, variant: Variant, torch_folder: Path) -> list[str]:
    include = torch_folder / "include"
    folders = (f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}")
    return [compiler, *_FLAGS, *_variant_flags(variant), "-DAT_PARALLEL_OPENMP=1", *folders]


def _precompile_headers(command: list[str], work: Path) -> Path | None:
    """A header that the compiler has read already; None if it can't keep one."""
    header = work / "common.h"
    header.write_text("".join(f"#include <{name}>\n" for name in _COMMON_HEADERS))
    try:
        _run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    except BuildFailed:
        return None
    return header


def _compile(command: list[str], header: Path | None, source: Path, work: Path) -> Path:
    made = work / f"{source.stem}.o"
    rest = ["-c", str(source), "-o", str(made)]
    if header is not None:
        try:
            _run([*command, "-include", str(header), *rest])
            return made
        except BuildFailed:
            pass  # some systems don't let a compiler load what it has kept
    _run([*command, *rest])
    return made


def _variant_flags(variant: Variant) -> tuple[str, ...]:
    if variant == "generic":
        return ("-O1",)
    if not _is_x86():
        return ("-O3",)
    # GCC leaves out fused multiply-adds in a lone chain of sums when it tunes for Zen; a row would then have other bits
    # alone, where its sums are such a chain, than beside others. Clang ignores --param.
    return ("-O3", "-march=native", "-mprefer-vector-width=512", "--param=avoid-fma-max-bits=0")


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _processor_flags() -> str:
    """What the kernel says the processor can do; a library for one processor is not loaded on another."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = [line for line in info.splitlines() if line.startswith(("flags", "Features", "model name"))]
    return "\n".join(sorted(set(lines)))


def _torch_folder() -> Path:
    found = find_spec("torch")  # found, not imported: compiling needs its headers only
    if found is None or found.origin is None:
        raise BuildFailed("torch is not installed.")
    return Path(found.origin).parent


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler, with our own arguments
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} could not be run: {error}.") from None
    if done.returncode:
        raise BuildFailed(f"{command[0]} failed:\n{done.stderr[-4000:]}")


def main() -> int:
    """Build and say so in a line; without a compiler say what that means, and end well."""
    parser = argparse.ArgumentParser(description="Compile blazr's native CPU kernels.")
    parser.add_argument("--variant", choices=("native", "generic"), default="native")
    parser.add_argument("--force", action="store_true", help="compile even if the library is there")
    parser.add_argument("--quiet", action="store_true", help="say nothing if it is there")
    parser.add_argument("--strict", action="store_true", help="fail if it can't be compiled")
    options = parser.parse_args()
    is_there = library_path(options.variant).exists() and not options.force
    if is_there and options.quiet:
        return 0
    if not is_there and find_compiler() is None:
        sys.stderr.write(f"{NO_COMPILER} Until then it runs on PyTorch alone, several times slower.\n")
        return 1 if options.strict else 0
    if not is_there:
        sys.stdout.write("Compiling the native kernels (once; a minute or two)\n")
        sys.stdout.flush()
    started = time.monotonic()
    try:
        path = build(options.variant, force=options.force)
    except BuildFailed as error:
        sys.stderr.write(f"Native kernels were not built; the PyTorch path is used, which is slower: {error}\n")
        return 1 if options.strict else 0
    sys.stdout.write(f"Native kernels: {path.name} ({time.monotonic() - started:.1f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
