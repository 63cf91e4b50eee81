"""Allocator and compute-thread settings: they change speed, never results."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from inference.host import machine
from inference.host.compute_threads import release_compute_threads
from inference.host.machine import available_memory_bytes, keep_freed_memory, machine_memory_bytes, zeroed_memory

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU libraries are expected on Linux only")


def parallel_sum() -> float:
    return float(torch.ones(4096, 512).matmul(torch.ones(512, 64)).sum())


@linux_only
def test_pool_comes_back_after_release() -> None:
    expected = parallel_sum()
    for _ in range(3):
        assert release_compute_threads()
        assert parallel_sum() == expected


@linux_only
def test_release_ends_the_pools_threads() -> None:
    """In a fresh process: threads of the system before a parallel operation, after it, after the release."""
    script = """
import os, time, torch
from inference.host.compute_threads import release_compute_threads
torch.set_num_threads(2)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
torch.ones(4096, 512).matmul(torch.ones(512, 64))
torch.ones(1 << 20).mul_(2)
during = count()
assert release_compute_threads()
deadline = time.monotonic() + 50
while count() >= during and time.monotonic() < deadline:
    time.sleep(0.01)
print(before, during, count())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    before, during, after = map(int, done.stdout.split())
    assert during > before
    assert after < during


@linux_only
def test_release_in_a_thread_without_a_pool_is_harmless() -> None:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(release_compute_threads()))
    thread.start()
    thread.join()
    assert answers == [True]


@linux_only
def test_allocator_settings_are_taken() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from inference.host.machine import keep_freed_memory; print(keep_freed_memory())"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True"
    assert keep_freed_memory()


@linux_only
def test_threads_share_an_arena() -> None:
    """In a fresh process: the number of arenas after threads have allocated at the same time."""
    script = """
import ctypes, sys, threading
from inference.host.machine import share_one_arena
assert sys.argv[1] == "own" or share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)
def allocate():
    together.wait()
    for _ in range(1000):
        assert libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_stats()
"""

    def arenas(kind: str) -> int:
        command = [sys.executable, "-c", script, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stderr.count("Arena ")

    assert arenas("own") > 1
    assert arenas("shared") == 1


@linux_only
def test_freed_memory_is_given_back_when_asked() -> None:
    """In a fresh process: 256 MiB are kept after they were freed, until they are returned."""
    script = """
import torch
from inference.host.machine import keep_freed_memory, return_freed_memory
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
assert keep_freed_memory()
before = resident()
held = [torch.ones(1 << 20) for _ in range(64)]
after = torch.ones(1)
del held
kept = resident() - before
assert kept > 200, kept
assert return_freed_memory()
assert resident() - before < 100, resident() - before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@linux_only
def test_mapped_zeros_take_memory_when_they_are_written() -> None:
    """In a fresh process: 512 MiB of zeros cost next to nothing, until half of them are written."""
    script = """
import torch
from inference.host.machine import zeroed_memory
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
before = resident()
held = torch.frombuffer(zeroed_memory(512 << 20), dtype=torch.float32)
assert resident() - before < 32, resident() - before
half = held[: held.numel() // 2]
half.fill_(1.0)
assert 240 < resident() - before < 300, resident() - before
assert held[held.numel() // 2 :].max() == 0.0
del half, held
assert resident() - before < 32, resident() - before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_more_zeros_than_the_system_has_are_refused() -> None:
    with pytest.raises(MemoryError, match="bytes can't be mapped"):
        zeroed_memory(1 << 60)


GIB = 1 << 30


@pytest.fixture
def control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 8 GiB available of 16, in a control group without files."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal:       {16 << 20} kB\nMemAvailable:    {8 << 20} kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(machine, "MEMINFO", meminfo)
    monkeypatch.setattr(machine, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(machine, "_total_bytes", lambda: 16 * GIB)
    (tmp_path / "memory").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "used", "details", "prefix"),
    [
        ("memory.max", "memory.current", "memory.stat", ""),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
    ],
)
def test_memory_is_what_the_control_group_leaves(
    control_group: Path, limit: str, used: str, details: str, prefix: str
) -> None:
    assert (machine_memory_bytes(), available_memory_bytes()) == (16 * GIB, 8 * GIB)
    (control_group / limit).write_text(f"{4 * GIB}\n")
    assert machine_memory_bytes() == 4 * GIB
    (control_group / used).write_text(f"{3 * GIB}\n")
    assert available_memory_bytes() == GIB
    cached = f"anon 7\n{prefix}inactive_file {GIB // 2}\n{prefix}active_file {GIB // 4}\n"
    (control_group / details).write_text(cached)
    assert available_memory_bytes() == GIB * 7 // 4
    (control_group / used).write_text(f"{5 * GIB}\n")  # for a moment, a group may have more than its limit
    assert available_memory_bytes() == 0
    (control_group / limit).write_text(f"{64 * GIB}\n")
    assert (machine_memory_bytes(), available_memory_bytes()) == (16 * GIB, 8 * GIB)
    (control_group / limit).write_text("max\n")
    assert (machine_memory_bytes(), available_memory_bytes()) == (16 * GIB, 8 * GIB)


def test_all_memory_counts_as_available_where_the_system_does_not_say(control_group: Path) -> None:
    (control_group / "meminfo").unlink()
    assert available_memory_bytes() == 16 * GIB
