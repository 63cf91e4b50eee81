"""Do a job for ``models_registry.job_process``: a request on standard input, lines of JSON out.

The lines hold progress, then a result or an error. The process ends as on SIGTERM when its input is closed, so it
doesn't outlive the web process that follows it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import BlazrError, InvalidRequest
from inference.host.signals import end_with_stdin, exit_on_sigterm
from inference.host.units import format_bytes
from inference.llm.loading import choose_device
from inference.llm.sizes import free_memory_bytes
from inference.modelling.specs.parts import Dtype

NICENESS = 10
OOM_SCORE_ADJ = 500
"""The kernel kills this process before the worker where memory runs out."""
DTYPES: Sequence[Dtype] = ("float32", "bfloat16")


def run(work: Callable[..., Mapping[str, Any]]) -> None:
    """Run one job.

    Args:
        work: Gets the request's members and ``progress``, and returns the result.
    """
    exit_on_sigterm()
    _yield_to_others()
    output = _take_stdout()
    request = json.loads(sys.stdin.buffer.readline())
    end_with_stdin()

    def write(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        result = work(**request, progress=lambda share, detail: write({"progress": share, "stage": detail}))
        write({"result": result})
    except BlazrError as error:
        write({"error": error.to_dict()})
    except Exception:  # the process boundary: the parent reports it as ours
        traceback.print_exc()
        sys.exit(1)


def device_and_dtype(device: str, needed_bytes: Callable[[torch.dtype], int], remedy: str) -> tuple[str, Dtype]:
    """Return the best number format that memory holds, and the fastest device for it.

    Args:
        device: As BLAZR_DEVICE has it.
        needed_bytes: What the job takes with a format.
        remedy: What helps where no device has so much.

    Raises:
        InvalidRequest: No device has enough free memory.
    """
    devices = list(dict.fromkeys((choose_device(force_cpu=device.startswith("cpu")), "cpu")))
    for dtype in DTYPES:
        for where in devices:
            if needed_bytes(TORCH_DTYPES[dtype]) <= free_memory_bytes(where):
                return where, dtype
    least = needed_bytes(TORCH_DTYPES[DTYPES[-1]])
    raise InvalidRequest(
        f"measuring the model takes {format_bytes(least)} of memory, "
        + ", ".join(f"{where} has {format_bytes(free_memory_bytes(where))} free" for where in devices)
        + f"; {remedy}.",
        param="checkpoint",
    )


def _yield_to_others() -> None:
    """Let the processes that serve come first, in processor time and in memory."""
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))


def _take_stdout() -> IO[str]:
    """Return the standard output, and send what libraries print to the standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output
