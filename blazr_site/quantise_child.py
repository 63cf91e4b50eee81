"""Quantise a checkpoint for ``models_registry.quantise_process``: a request on standard input, lines of JSON out.

The lines hold progress, then a result or an error. The process ends as on SIGTERM when its input is closed, so it
doesn't outlive the web process that follows it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from blazr_site.commands.arguments import QUANTISE_TOKENS, QUANTISE_WINDOW
from blazr_site.commands.loading import choose_device
from blazr_site.commands.quality import text_tokens
from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import BlazrError, InvalidRequest, StorageFull
from inference.host.signals import exit_on_sigterm
from inference.host.units import format_bytes
from inference.llm.quantising.measuring import measuring_bytes
from inference.llm.quantising.quantise import Limit, Progress, quantise_checkpoint
from inference.llm.quantising.writing import SourceFiles
from inference.llm.sizes import free_memory_bytes
from inference.modelling.layer_parts import Dtype
from inference.modelling.spec import ModelSpec
from models_registry.detection.child import inspect_in_child

NICENESS = 10
OOM_SCORE_ADJ = 500
"""The kernel kills this process before the worker where memory runs out."""
DTYPES: Sequence[Dtype] = ("float32", "bfloat16")


def main() -> None:
    """Run one quantisation."""
    exit_on_sigterm()
    _yield_to_others()
    output = _take_stdout()
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def write(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        result = quantise(**request, progress=lambda share, detail: write({"progress": share, "stage": detail}))
        write({"result": result})
    except BlazrError as error:
        write({"error": error.to_dict()})
    except Exception:  # the process boundary: the parent reports it as ours
        traceback.print_exc()
        sys.exit(1)


def quantise(
    *,
    path: str,
    overrides: Mapping[str, Any],
    target: str,
    max_bytes: int | None,
    max_kl: float | None,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """Write ``target`` as ``blazr quantise`` does; return its figures.

    Args:
        path: The checkpoint.
        overrides: Facts that count instead of detected ones.
        target: A directory that doesn't exist yet.
        max_bytes: Limit of the weights' file.
        max_kl: Limit of the mean KL divergence, in nats.
        device: As BLAZR_DEVICE has it.
        progress: Called with the share done and a description of the present work.

    Raises:
        BlazrError: The checkpoint can't be quantised within the limits.
    """
    progress(0.0, "inspecting")
    inspection = inspect_in_child(Path(path), overrides)
    token_ids, text = text_tokens(inspection, None, QUANTISE_TOKENS)
    where, dtype = _device_and_dtype(inspection.spec, len(token_ids), device)
    try:
        found = quantise_checkpoint(
            inspection.spec,
            inspection.weight_paths,
            SourceFiles(inspection.directory, inspection.tensors, inspection.other_files),
            Path(target),
            token_ids,
            Limit(max_bytes, max_kl),
            text=text,
            window=min(QUANTISE_WINDOW, inspection.spec.max_position_embeddings),
            device=where,
            dtype=dtype,
            progress=progress,
        )
    except InvalidRequest as error:
        if error.param != "output":
            raise
        sys.stderr.write(f"{error.message}\n")
        raise StorageFull("the server's disk took no more; free some space and start the quantisation again.") from None
    return {"size_bytes": found.size_bytes, "divergence": asdict(found.divergence)}


def _device_and_dtype(spec: ModelSpec, num_tokens: int, device: str) -> tuple[str, Dtype]:
    """Return the best number format that memory holds, and the fastest device for it.

    Raises:
        InvalidRequest: No device has enough free memory.
    """
    devices = list(dict.fromkeys((choose_device(force_cpu=device.startswith("cpu")), "cpu")))
    for dtype in DTYPES:
        for where in devices:
            if measuring_bytes(spec, num_tokens, TORCH_DTYPES[dtype]) <= free_memory_bytes(where):
                return where, dtype
    least = measuring_bytes(spec, num_tokens, TORCH_DTYPES[DTYPES[-1]])
    raise InvalidRequest(
        f"measuring the model takes {format_bytes(least)} of memory, "
        + ", ".join(f"{where} has {format_bytes(free_memory_bytes(where))} free" for where in devices)
        + "; unload models, or run blazr quantise on a larger machine.",
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


def _end_with_parent() -> None:
    """Wait for the end of the input, then stop this process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
