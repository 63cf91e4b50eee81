"""Checkpoints of several families, quantised with given forms or by measurement."""

from __future__ import annotations

from pathlib import Path

import torch

from inference.llm.checkpoint_writing import SourceFiles
from inference.llm.quantising.parts import Part, find_parts
from inference.llm.quantising.quantise import Limit, Quantised, quantise_checkpoint
from inference.llm.quantising.side_files import side_files
from inference.llm.quantising.source import SourceTensors
from models_registry.detection.inspection import Inspection, inspect_checkpoint


def source_of(found: Inspection) -> SourceFiles:
    return side_files(found)


def tensors_of(found: Inspection) -> SourceTensors:
    return SourceTensors(found.spec, found.weight_paths, source_of(found))


def parts_of(found: Inspection) -> list[Part]:
    return find_parts(found.spec, tensors_of(found).tensors)


def random_tokens(vocab_size: int, count: int = 48) -> list[int]:
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def quantise(
    found: Inspection,
    target: Path,
    limit: Limit,
    count: int = 48,
    window: int = 24,
    num_corrected: int = 0,
    with_curve: bool = True,
    measurements: Path | None = None,
) -> Quantised:
    tokens = random_tokens(found.spec.vocab_size, count + num_corrected)
    return quantise_checkpoint(
        found.spec, found.weight_paths, source_of(found), target, tokens[:count], limit,
        text="random tokens", window=window, calibration=tokens[count:], with_curve=with_curve,
        measurements=measurements,
    )  # fmt: skip


def inspect(directory: Path) -> Inspection:
    return inspect_checkpoint(directory)
