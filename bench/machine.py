"""What this machine can do at best: memory read in bytes per second, products of matrices in operations per second."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from inference.modelling.backends.native.build import find_compiler

BUFFER_BYTES = 1 << 30
MAX_MEASURE_S = 5.0
"""Seconds after which nothing is repeated: a product of bfloat16 takes a minute where torch multiplies it plainly."""
WINDOW_BYTES = 32 << 10
"""What the compiled reader reads is a multiple of it."""
ROUNDS = 300_000
"""Rounds of the compiled multiplications that are timed at once: some tens of milliseconds."""


class Machine:
    """A child that measures limits; see ``bench.child``."""

    def __init__(self) -> None:
        self._readers: tuple[Callable[[], Any], ...] | None = None

    def load(self) -> dict[str, Any]:
        return {"threads": torch.get_num_threads()}

    def bandwidth(self) -> dict[str, float]:
        """Bytes per second that all threads read from a buffer far greater than the caches, by page size."""
        return {
            "small_pages": _read_rate(huge=False),
            "huge_pages": _read_rate(huge=True),
        }

    def read(self) -> dict[str, float]:
        """Bytes per second from huge pages right now: what ``bench.in_turns`` asks for between other measurements."""
        if self._readers is None:
            self._readers = _readers(huge=True)
        return {"bytes_per_s": BUFFER_BYTES / min(_best(reader, 2) for reader in self._readers)}

    def gemm(self) -> dict[str, float]:
        """Operations per second of square products, by number format; 0 where torch has no such product.

        Of float32 the processor's own multiplications are taken where they are faster: torch's products reach 0.7 of
        them on a Zen 3.
        """
        rates = {}
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
            rates[name] = 2 * 2048**3 / _best(lambda a=a, b=b: torch.matmul(a, b))  # type: ignore[misc]
        rates["float32"] = max(rates["float32"], multiplication_rate())
        rates["int8"] = 2 * 2048**3 / _best(_int8_product(2048))
        return rates


def _best(call: Callable[[], Any], repeats: int = 7) -> float:
    """Seconds of the fastest call: a limit is what was reached undisturbed. Calls of seconds are repeated less."""
    call()
    times: list[float] = []
    while len(times) < repeats and sum(times) < MAX_MEASURE_S:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def _read_rate(*, huge: bool) -> float:
    return BUFFER_BYTES / min(_best(reader) for reader in _readers(huge=huge))


def _readers(*, huge: bool) -> tuple[Callable[[], Any], ...]:
    """Ways to read ``BUFFER_BYTES``: compiled ones, or without a compiler torch's, which may reach less."""
    memory = mmap.mmap(-1, BUFFER_BYTES)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    values = torch.frombuffer(memory, dtype=torch.float32)
    # Pages that were never written are all the same page of zeros, which the caches hold.
    values.copy_(torch.arange(values.numel(), dtype=torch.float32).remainder_(251.0))
    compiled = compiled_reader()
    if compiled is not None:
        return tuple(lambda pages=pages: read_by_all(compiled, values, pages) for pages in (False, True))
    integers, half = values.view(torch.int32), values.numel() // 2
    return (
        lambda: torch.sum(values),
        lambda: torch.amax(integers),
        lambda: torch.dot(values[:half], values[half:]),
    )


def multiplication_rate(*, beside: bool = False) -> float:
    """Float32 operations per second of the compiled multiplications on all of torch's threads; 0 without a compiler.

    Args:
        beside: Each has nearly two other instructions beside it, which an undisturbed core decodes in the same time. If
            they cost much, another thread has half of the core: on a rented machine perhaps somebody else's.
    """
    library = _compiled("multiply.cpp", "-march=native")
    if library is None:
        return 0.0
    library.operations.restype = ctypes.c_int64
    library.multiply.argtypes, library.multiply.restype = (ctypes.c_int64, ctypes.c_bool), ctypes.c_float
    threads = torch.get_num_threads()

    def call() -> None:
        list(_threads(threads).map(lambda _: library.multiply(ROUNDS, beside), range(threads)))

    return threads * ROUNDS * int(library.operations()) / _best(call)


Reader = Callable[[int, int, bool], int]
"""Of an address, a multiple of ``WINDOW_BYTES``, and whether pages have their turns: the exclusive or of all words."""


def compiled_reader() -> Reader | None:
    """``read_memory`` of ``read_memory.cpp``; None without a compiler."""
    library = _compiled("read_memory.cpp")
    if library is None:
        return None
    function = library.read_memory
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool)
    function.restype = ctypes.c_uint64
    return function


@lru_cache
def _compiled(source: str, *flags: str) -> ctypes.CDLL | None:
    """The library of a source in this folder; None without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "library.so"
        options = ["-std=c++20", "-O3", "-Wno-psabi", "-shared", "-fPIC", *flags]
        subprocess.run([compiler, *options, Path(__file__).with_name(source), "-o", made], check=True)
        return ctypes.CDLL(str(made))


def read_by_all(reader: Reader, values: torch.Tensor, pages: bool) -> int:
    """Read a tensor with as many threads as torch has, each a part of its own; the exclusive or of all words."""
    threads = torch.get_num_threads()
    each = values.nbytes // threads // WINDOW_BYTES * WINDOW_BYTES
    found = 0
    for part in _threads(threads).map(lambda at: reader(values.data_ptr() + at * each, each, pages), range(threads)):
        found ^= part
    return found


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def _int8_product(size: int) -> Callable[[], Any]:
    """Unsigned by signed, as oneDNN's quantised linear has it: the form with the most instructions for it."""
    weights = torch.randint(-127, 127, (size, size), dtype=torch.int8)
    values = torch.randint(0, 255, (size, size), dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(weights.t().contiguous().t(), [size, size])
    scales, zeros = torch.full((size,), 0.01), torch.zeros(size, dtype=torch.int64)

    def call() -> Any:
        return torch.ops.onednn.qlinear_pointwise(
            values, 0.01, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return call


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
