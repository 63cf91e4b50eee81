"""The calling thread's pool of compute threads (GNU OpenMP). Standard library only.

GNU OpenMP gives every thread that computes in parallel a pool of its own, and keeps it. As soon as all pools together
have more threads than there are processors, waiting threads no longer spin before they sleep, and each parallel
operation pays for waking them: a decode step of a 135M model took 22 to 28 ms instead of 14 ms, just because another
thread had loaded the weights (docs/performance.md). So a thread that has done computing for now hands its pool back.
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

_SOFT_PAUSE = 1  # omp_pause_soft, OpenMP 5.0 section 3.2.44: settings survive


def release_compute_threads() -> bool:
    """End the calling thread's pool; the next parallel operation makes a new one in a fraction of a millisecond.

    Call it outside of any parallel operation.

    Returns:
        Whether it was done; False where torch doesn't compute with GNU OpenMP.
    """
    pause = _pause_function()
    return pause is not None and pause(_SOFT_PAUSE) == 0


@lru_cache(maxsize=1)
def _pause_function() -> Any:
    """``omp_pause_resource_all`` of the very library that this process has loaded; None if there is none."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"/\S*libgomp\S*", maps)
    if found is None:
        return None
    try:
        return ctypes.CDLL(found.group(0)).omp_pause_resource_all
    except (OSError, AttributeError):
        return None
