"""Give a process a wrong clock: a preloaded library adds the seconds of a file to the time of day.

libfaketime does the same, but breaks ``time.sleep`` of Python 3.11. Monotonic clocks stay as they are.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile long long none = 0, *offset_s = &none;

__attribute__((constructor)) static void open_offset() {
  int descriptor = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY);
  void *found = mmap(nullptr, sizeof *offset_s, PROT_READ, MAP_SHARED, descriptor, 0);
  if (found != MAP_FAILED) offset_s = (const volatile long long *)found;
}

extern "C" int clock_gettime(clockid_t clock, struct timespec *now) noexcept {
  static auto original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = original(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *offset_s;
  return result;
}

extern "C" int gettimeofday(struct timeval *now, void *zone) noexcept {
  static auto original = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
  int result = original(now, zone);
  now->tv_sec += *offset_s;
  return result;
}

extern "C" time_t time(time_t *now) noexcept {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) *now = found.tv_sec;
  return found.tv_sec;
}
"""


def has_compiler() -> bool:
    """Whether the library can be built here."""
    return shutil.which("g++") is not None


def build_library(directory: Path) -> Path:
    """Compile the library into a directory."""
    source, library = directory / "clock.cc", directory / "clock.so"
    source.write_text(_SOURCE)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def clock_variables(library: Path, path: Path) -> dict[str, str]:
    """Return the environment of a process whose clock is offset by the seconds in the file ``path``."""
    set_clock(path, 0)
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(path)}


def set_clock(path: Path, offset_s: int) -> None:
    """Let the clock jump: it is so many seconds ahead of the machine's from now on."""
    with path.open("r+b" if path.exists() else "w+b") as file:  # the process has it mapped
        file.write(struct.pack("<q", offset_s))
