"""Quantise a checkpoint as the child process of a job (``job_child``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blazr_site.commands.arguments import QUANTISE_CORRECTION, QUANTISE_TOKENS, QUANTISE_WINDOW
from blazr_site.commands.quality import text_tokens, tokens_to_read
from blazr_site.job_child import device_and_dtype, run
from inference.errors import InvalidRequest, StorageFull
from inference.llm.quantising.correcting import correcting_bytes
from inference.llm.quantising.measuring import measuring_bytes
from inference.llm.quantising.quantise import Limit, Progress, quantise_checkpoint, split_text
from inference.llm.quantising.side_files import side_files
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection


def quantise(
    *,
    path: str,
    overrides: Mapping[str, Any],
    target: str,
    max_bytes: int | None,
    max_kl: float | None,
    text: str,
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
        text: What is measured on; empty: Python's help pages.
        device: As BLAZR_DEVICE has it.
        progress: Called with the share done and a description of the present work.

    Raises:
        BlazrError: The checkpoint can't be quantised within the limits.
    """
    progress(0.0, "inspecting")
    inspection = inspect_in_child(Path(path), overrides)
    token_ids, calibration, label = _tokens(inspection, text)
    where, dtype = device_and_dtype(
        device,
        lambda dtype: (
            measuring_bytes(inspection.spec, len(token_ids), dtype)
            + correcting_bytes(inspection.spec, len(calibration), dtype)
        ),
        "unload models, or run blazr quantise on a larger machine",
    )
    try:
        found = quantise_checkpoint(
            inspection.spec,
            inspection.weight_paths,
            side_files(inspection),
            Path(target),
            token_ids,
            Limit(max_bytes, max_kl),
            text=label,
            window=min(QUANTISE_WINDOW, inspection.spec.max_position_embeddings),
            calibration=calibration,
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


def _tokens(inspection: Inspection, text: str) -> tuple[Sequence[int], Sequence[int], str]:
    """Return the tokens to measure on, those to correct on, and a description of their source."""
    most = QUANTISE_TOKENS + QUANTISE_CORRECTION
    if text:
        both, label = tokens_to_read(inspection, (text, "a text of its own"), most)
    else:
        both, label = text_tokens(inspection, None, most)
    return *split_text(both, QUANTISE_TOKENS), label


if __name__ == "__main__":
    run(quantise)
