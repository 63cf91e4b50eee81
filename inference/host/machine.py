"""Memory of long-lived processes: the C library's allocator, pages that come when they are used, Python's collector.

Standard library only.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from pathlib import Path
from typing import NamedTuple

DEFAULT_MEMORY_SHARE = 0.7
"""Share of the machine's memory for models; ``inference.llm.sizes.CUDA_SHARE`` is the share of a CUDA device."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGE = 1 << 30
_TOP_PAD_BYTES = 64 << 20

CONTROL_GROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class _ControlGroup(NamedTuple):
    """Files of a version of control groups, and the fields of ``details`` that can be given back: the files' cache."""

    limit: str
    used: str
    details: str
    caches: tuple[str, str]


_CONTROL_GROUPS = (
    _ControlGroup("memory.max", "memory.current", "memory.stat", ("active_file", "inactive_file")),
    _ControlGroup(
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_active_file", "total_inactive_file"),
    ),
)


def keep_freed_memory() -> bool:
    """Let glibc reuse the memory of freed tensors instead of giving it back to the system each time.

    By default every activation above 128 KiB is mapped afresh, and its pages are faulted in one by one: an RMSNorm of
    512 rows took 0.99 ms instead of 0.10 ms here, a whole prefill a quarter longer (docs/performance.md).

    Returns:
        Whether the C library took the settings; False on others than glibc, where nothing changes.
    """
    return _set_allocator((_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE), (_M_TOP_PAD, _TOP_PAD_BYTES))


def share_one_arena() -> bool:
    """Let all threads of this process take memory from one place; for its start.

    By default glibc has eight arenas for each core. In a process whose requests have threads of their own, all of them
    fill with gaps: a web process grew by 0.2 MiB with each 1,000 requests and had no more in use.

    Returns:
        As ``keep_freed_memory``.
    """
    return _set_allocator((_M_ARENA_MAX, 1))


def _set_allocator(*settings: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, value) == 1 for option, value in settings)


def return_freed_memory() -> bool:
    """Give back, once, what ``keep_freed_memory`` has kept: after a load, whose temporaries are larger than a step's.

    Returns:
        Whether there was something that could be given back; False also on other C libraries than glibc.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0) == 1)
    except (OSError, AttributeError):
        return False


def freeze_objects() -> None:
    """Spare Python's collector what exists now, modules and classes above all, which stay as long as the process.

    A full round over them took 117 ms in a worker and 48 ms in a web process (docs/performance.md), and no stream got a
    token meanwhile. For the end of a process's start, once.
    """
    gc.collect()
    gc.freeze()


def zeroed_memory(num_bytes: int) -> mmap.mmap:
    """Zeros outside of the allocator. A page takes memory when it is first written, and goes back when nobody holds it.

    Huge pages where the system gives them: each small one costs a walk through the page table for every 4 KiB read.

    Args:
        num_bytes: At least 1.

    Raises:
        MemoryError: More than the system promises.
    """
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, num_bytes)
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes:,} bytes can't be mapped: {error}.") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def cpu_multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for it (Linux on x86-64: the kernel's flags)."""
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def machine_memory_bytes() -> int:
    """What the control group leaves of the machine's memory."""
    limits = [limit for layout in _CONTROL_GROUPS if (limit := _number_in(CONTROL_GROUP / layout.limit)) is not None]
    return min([_total_bytes(), *limits])


def available_memory_bytes() -> int:
    """What the system, within the limit of the control group, could give without swapping."""
    left = [_system_available_bytes()]
    for layout in _CONTROL_GROUPS:
        limit, used = _number_in(CONTROL_GROUP / layout.limit), _number_in(CONTROL_GROUP / layout.used)
        if limit is not None and used is not None:
            cached = sum(_fields_of(CONTROL_GROUP / layout.details).get(name, 0) for name in layout.caches)
            left.append(max(limit - max(used - cached, 0), 0))
    return min(left)


def _system_available_bytes() -> int:
    kib = _fields_of(MEMINFO).get("MemAvailable:")
    return _total_bytes() if kib is None else kib * 1024


def _total_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number_in(path: Path) -> int | None:
    """The number that a file consists of; None without the file, or where it says that there is no limit."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _fields_of(path: Path) -> dict[str, int]:
    """The numbers of a file whose lines begin with a name and a number; empty without the file."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
