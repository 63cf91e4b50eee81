"""Statistics of a tensor, and the changes between two checkpoints: computed on demand in a child process, and kept.

One computation runs at a time in a process; its time and its reading are bounded (``tensor_child``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequest, NotFound, QueueFull
from inference.host.held_place import held_place
from inference.modelling.families.config import TensorInfo
from inference.modelling.gguf.ggjt import has_ggml_suffix
from inference.modelling.spec_json import encode
from models_registry import selectors
from models_registry.checkpoint_jobs import check_available, follow
from models_registry.detection.inspection import Inspection
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint
from models_registry.plain_formats import PLAIN_BYTES
from models_registry.services import checkpoint_files_verify

CHILD = "models_registry.tensor_child"
DECODING_CHILD = "blazr_site.coded_tensor_child"
"""Reads codes as the loader does, with torch, which the other child does without."""
MAX_SECONDS = 60.0
COMPARE_SECONDS = 45.0
"""After which the comparison of two checkpoints ends with what it has."""
MAX_COMPARED_VALUES = 1 << 29
"""Values of a checkpoint that a comparison reads; of larger ones it reads a part of every tensor."""
MIN_COMPARED_VALUES = 1 << 16
WAIT_S = 10.0
"""For the end of another computation."""
MAX_KEPT = 256
"""Statistics that this process keeps."""

_turn = threading.Lock()


def is_in_blocks(info: TensorInfo) -> bool:
    """Whether a file of GGML's formats holds a tensor in blocks or pieces, whose values follow by decoding."""
    return has_ggml_suffix(info.file) and info.shape != () and math.prod(info.shape) > 0 and bool(why_not(info))


def why_not(info: TensorInfo) -> str:
    """Return why a tensor's values can't be summed up as they are stored; empty: they can."""
    if info.dtype not in PLAIN_BYTES:
        return f"It is stored in blocks of {info.dtype}; figures of their codes would say nothing of the weights."
    if math.prod(info.shape) * PLAIN_BYTES[info.dtype] != info.end - info.begin:
        return "It is stored in several pieces."
    if not math.prod(info.shape):
        return "It has no values."
    return ""


def tensor_statistics(checkpoint: Checkpoint, name: str, *, of_weight: bool = False) -> dict[str, Any]:
    """Return what ``tensor_numbers.statistics`` finds of a tensor; of blocks, what it finds of their decoded values.

    Args:
        of_weight: Decode the quantised weight that the tensor is a part of, instead of summing up the codes.

    Raises:
        NotFound: There is no such tensor.
        InvalidRequest: Its values can't be read as numbers, or it takes too long.
        Conflict: The checkpoint's files are missing.
        ChecksumMismatch: They have changed.
        QueueFull: Another computation runs.
    """
    check_available(checkpoint)
    checkpoint_files_verify(checkpoint)
    return _statistics(checkpoint.pk, checkpoint.updated_at.isoformat(), name, of_weight)


def run_child(request: Mapping[str, Any], max_seconds: float = MAX_SECONDS, child: str = CHILD) -> dict[str, Any]:
    """Run one request in a child, when it is this one's turn.

    Args:
        child: Its module.

    Raises:
        QueueFull: Another computation runs.
        InvalidRequest: It took too long.
        BlazrError: As the child writes it.
    """
    refusal = QueueFull("other tensors are being read; try again in a moment.", retry_after_s=10)
    with held_place(_turn, refusal, wait_s=WAIT_S), JobProcess(child, request) as process:
        return follow(process, lambda share, stage: None, max_seconds=max_seconds)


def stored_at(inspection: Inspection, info: TensorInfo) -> dict[str, Any]:
    """Return where a tensor's numbers are, for the child."""
    path = Path(inspection.directory) / info.file
    return {"path": str(path), "dtype": info.dtype, "begin": info.begin, "count": math.prod(info.shape)}


def tensor_changes(before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
    """Compare the values of two checkpoints' tensors of the same name and shape.

    Returns:
        ``changes``: for each compared tensor its ``name`` and what ``tensor_numbers.change`` returns;
        ``num_others``: tensors that can't be compared: of another name or shape, or not plain values;
        ``num_unread``: those for which there was no time.

    Raises:
        InvalidRequest: No tensor can be compared, or it takes too long.
        Conflict: A checkpoint's files are missing.
        ChecksumMismatch: They have changed.
        QueueFull: Another computation runs.
    """
    for checkpoint in (before, after):
        check_available(checkpoint)
        checkpoint_files_verify(checkpoint)
    return _changes(before.pk, before.updated_at.isoformat(), after.pk, after.updated_at.isoformat())


@lru_cache(maxsize=MAX_KEPT)
def _statistics(checkpoint_id: Any, version: str, name: str, of_weight: bool) -> dict[str, Any]:
    inspection = selectors.checkpoint_inspection(selectors.checkpoint_get(checkpoint_id))
    info = inspection.tensors.get(name)
    if info is None:
        raise NotFound(f"there is no tensor {name[:120]!r}.", param="tensor")
    if of_weight or is_in_blocks(info):
        return run_child(_decoding(inspection, name, of_weight=of_weight), child=DECODING_CHILD)
    problem = why_not(info)
    if problem:
        raise InvalidRequest(problem, param="tensor")
    return run_child({"work": "summarise", "tensor": stored_at(inspection, info)})


def _decoding(inspection: Inspection, name: str, *, of_weight: bool) -> dict[str, Any]:
    """Return the request that decodes a tensor of blocks, or the weight that a tensor is a part of.

    Raises:
        InvalidRequest: The tensor is no part of a quantised weight.
    """
    if not of_weight:
        return {"paths": [str(path) for path in inspection.weight_paths], "name": name, "encoded": None}
    item = next((item for item in inspection.spec.encoded if name in item.parts.values()), None)
    if item is None:
        raise InvalidRequest(f"{name[:120]} is no part of a quantised weight.", param="tensor")
    files = dict.fromkeys(inspection.tensors[part].file for part in item.parts.values())
    paths = [str(Path(inspection.directory) / file) for file in files]
    return {"paths": paths, "name": item.name, "encoded": encode(item)}


@lru_cache(maxsize=16)
def _changes(before_id: Any, before_version: str, after_id: Any, after_version: str) -> dict[str, Any]:
    before, after = (
        selectors.checkpoint_inspection(selectors.checkpoint_get(found)) for found in (before_id, after_id)
    )
    pairs, num_others = _pairs(before, after)
    if not pairs:
        raise InvalidRequest("no tensor of both models has the same name and shape and plain values.", param="from")
    total = sum(math.prod(before.tensors[name].shape) for name in pairs)
    most = total if total <= MAX_COMPARED_VALUES else max(MIN_COMPARED_VALUES, MAX_COMPARED_VALUES // len(pairs))
    request = {
        "work": "compare",
        "pairs": [[stored_at(one, one.tensors[name]) for one in (before, after)] for name in pairs],
        "max_values": most,
        "seconds": COMPARE_SECONDS,
    }
    found = run_child(request)["changes"]
    return {
        "changes": [{"name": name, **change} for name, change in zip(pairs, found, strict=False)],
        "num_others": num_others,
        "num_unread": len(pairs) - len(found),
    }


def _pairs(before: Inspection, after: Inspection) -> tuple[list[str], int]:
    """Return the names of the tensors that can be compared, and how many others there are in both together."""
    coded = {part for one in (before, after) for item in one.spec.encoded for part in item.parts.values()}
    names = [
        name
        for name, info in before.tensors.items()
        if name in after.tensors
        and after.tensors[name].shape == info.shape
        and name not in coded
        and not why_not(info)
        and not why_not(after.tensors[name])
    ]
    return names, len(before.tensors.keys() | after.tensors.keys()) - len(names)
