"""Write a quantised checkpoint: a safetensors directory with codes and scales in rows, the plan and its figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from inference.llm.checkpoint_writing import (
    CONFIG_FILE,
    LENGTH_BYTES,
    WEIGHTS_FILE,
    Entry,
    SourceFiles,
    partial_directory,
    stored_entry,
    tensor_entry,
    write_tensors,
)
from inference.llm.quantising.parts import HEADER_BYTES
from inference.modelling.encodings.blazr import CODES, METHOD, SCALES
from inference.modelling.encodings.quantisation_config import BLAZR_VERSION
from inference.modelling.families.checks import TIED_HEAD
from inference.modelling.families.config import TensorInfo
from inference.modelling.layers.coded import quantised_rows
from inference.modelling.quantisation import FormName
from inference.modelling.spec import ModelSpec, Source

PLAN_FILE = "quantisation.json"


def write_checkpoint(
    target: Path,
    source: SourceFiles,
    spec: ModelSpec,
    forms: Mapping[str, FormName],
    weight_of: Callable[[str], torch.Tensor],
    *,
    measured: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> int:
    """Write the directory; nothing is left behind if that fails.

    Args:
        target: New, or an empty directory.
        source: The checkpoint that is quantised.
        spec: Its specification.
        forms: Form of each quantised parameter.
        weight_of: Returns the stored values of a parameter, float32 or bfloat16.
        measured: Figures for config.json.
        plan: Content of ``quantisation.json``.

    Returns:
        Bytes of the weights' file.
    """
    with partial_directory(target) as partial:
        names = [name for name in source.others if name != CONFIG_FILE]
        for name in names:
            shutil.copyfile(source.directory / name, partial / name)
        config = _config(source, spec, forms, measured)
        (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (partial / PLAN_FILE).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        entries = _entries(source, spec, forms, weight_of)
        size = write_tensors(partial / WEIGHTS_FILE, entries, _header_bytes(source, spec, forms))
        for name in (*names, PLAN_FILE, WEIGHTS_FILE, CONFIG_FILE):  # the config last: it makes a checkpoint of them
            (partial / name).rename(target / name)
    return size


def _config(
    source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName], measured: Mapping[str, Any]
) -> dict[str, Any]:
    values = json.loads((source.directory / CONFIG_FILE).read_bytes()) if CONFIG_FILE in source.others else {}
    tensors = {piece.name: form for name, form in forms.items() for piece in spec.parameters[name].pieces}
    stated = {
        "quant_method": METHOD,
        "version": BLAZR_VERSION,
        "stored_dtype": spec.dtype,
        "tensors": tensors,
        "measured": dict(measured),
    }
    return {**values, "quantization_config": stated}


def _header_bytes(source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName]) -> int:
    """Return the bytes reserved for the header: at least its size, a multiple of eight."""
    names = [*source.tensors]
    names += [name + CODES + SCALES for parameter in forms for name in spec.parameters[parameter].tensor_names()]
    return -(-(HEADER_BYTES + sum(len(name) + HEADER_BYTES for name in names)) // LENGTH_BYTES) * LENGTH_BYTES


def _entries(
    source: SourceFiles, spec: ModelSpec, forms: Mapping[str, FormName], weight_of: Callable[[str], torch.Tensor]
) -> Iterator[Entry]:
    """Yield all tensors of the file: unquantised ones, then codes and scales.

    A copy of a tied head is left out, because the embedding that it copies changes.
    """
    in_codes = {name for parameter in forms for name in spec.parameters[parameter].tensor_names()}
    for name, info in source.tensors.items():
        if name not in in_codes and not (spec.tie_word_embeddings and TIED_HEAD.fullmatch(name)):
            yield stored_entry(source.directory, name, info)
    for parameter, form in forms.items():
        codes, scales = (part.cpu() for part in quantised_rows(weight_of(parameter), form))
        for name, its_codes, its_scales in _by_tensor(spec.parameters[parameter], codes, scales, source.tensors):
            yield tensor_entry(name + CODES, its_codes)
            yield tensor_entry(name + SCALES, its_scales)


def _by_tensor(
    source: Source, codes: torch.Tensor, scales: torch.Tensor, tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield each tensor of the checkpoint with its rows of a parameter's codes and scales."""
    stacks = [(codes, scales)] if source.num_experts is None else list(zip(codes, scales, strict=True))
    for number, (its_codes, its_scales) in enumerate(stacks):
        start = 0
        for piece in source.pieces:
            name = piece.name.replace("{e}", str(number)) if source.num_experts is not None else piece.name
            stop = start + tensors[name].shape[0]
            yield name, its_codes[start:stop], its_scales[start:stop]
            start = stop
