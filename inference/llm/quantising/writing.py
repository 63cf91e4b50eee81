"""Write a quantised checkpoint: a safetensors directory with codes and scales in rows, the plan and its figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from inference.llm.checkpoint_writing import (
    CONFIG_FILE,
    SHARD_BYTES,
    Entry,
    SourceFiles,
    computed_entry,
    json_content,
    partial_directory,
    publish,
    write_weights,
)
from inference.llm.quantising.source import SourceTensor, SourceTensors, kept_members
from inference.modelling.encodings.blazr import CODES, METHOD, SCALES
from inference.modelling.encodings.quantisation_config import BLAZR_VERSION, KEPT_VERSION
from inference.modelling.families.checks import TIED_HEAD
from inference.modelling.layers.coded import Codes, code_plainly, quantised_rows
from inference.modelling.quantisation import OWN_FORMS, Form, FormName, code_bytes
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import Source

QUANTISATION_KEYS = ("quantization_config", "compression_config")
"""Keys of config.json that state how a checkpoint was quantised."""
PLAN_FILE = "quantisation.json"


def write_checkpoint(
    target: Path,
    source: SourceFiles,
    stored: SourceTensors,
    spec: ModelSpec,
    forms: Mapping[str, FormName],
    weight_of: Callable[[str], torch.Tensor],
    *,
    codes: Mapping[str, Codes] | None = None,
    measured: Mapping[str, Any],
    plan: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write the directory; nothing is left behind if that fails.

    Args:
        target: New, or an empty directory.
        source: Files of the checkpoint that is quantised.
        stored: Its tensors.
        spec: Its specification.
        forms: Form of each quantised parameter.
        weight_of: Returns the stored values of a parameter, float32 or bfloat16.
        codes: Of the parameters that aren't rounded plainly.
        measured: Figures for config.json.
        plan: Content of ``quantisation.json``.
        shard_bytes: Most bytes of the tensors in one file.

    Returns:
        Bytes of the weights' files.
    """
    in_codes = {name for parameter in forms for name in spec.parameters[parameter].tensor_names()}
    left = [
        name
        for name in stored.tensors
        # A copy of a tied head is left out, because the embedding that it copies changes.
        if name not in in_codes and not (spec.tie_word_embeddings and TIED_HEAD.fullmatch(name))
    ]
    kept = {name: form for name in left if (form := stored.tensors[name].form) is not None}
    with partial_directory(target) as unfinished:
        content = {
            **source.made,
            CONFIG_FILE: json_content(_config(source, spec, forms, kept, measured)),
            PLAN_FILE: json_content(plan),
        }
        copied = [name for name in source.others if name not in content]
        for name in copied:
            shutil.copyfile(source.directory / name, unfinished / name)
        for name, data in content.items():
            (unfinished / name).write_bytes(data)
        with stored.entries(left) as entries:
            entries += _coded_entries(spec, forms, weight_of, codes or {}, stored.tensors)
            written, size = write_weights(unfinished, entries, shard_bytes)
        publish(unfinished, target, [*copied, *content, *written])
    return size


def _config(
    source: SourceFiles,
    spec: ModelSpec,
    forms: Mapping[str, FormName],
    kept: Mapping[str, Form],
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    tensors: dict[str, Any] = {
        piece.name: form for name, form in forms.items() for piece in spec.parameters[name].pieces
    }
    tensors |= {name: kept_members(form) for name, form in _by_pattern(spec, kept).items()}
    stated = {
        "quant_method": METHOD,
        "version": KEPT_VERSION if kept else BLAZR_VERSION,
        "stored_dtype": spec.dtype,
        "tensors": tensors,
        "measured": dict(measured),
    }
    values = {key: value for key, value in source.config().items() if key not in QUANTISATION_KEYS}
    return {**values, "quantization_config": stated} if tensors else values


def _by_pattern(spec: ModelSpec, kept: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms of kept tensors by name, those of experts that are all alike by the name with ``{e}``."""
    found = dict(kept)
    for source in spec.parameters.values():
        for piece in source.pieces if source.num_experts and "{e}" in source.pieces[0].name else ():
            names = [piece.name.replace("{e}", str(number)) for number in range(source.num_experts or 0)]
            first = kept.get(names[0])
            if first is not None and all(kept.get(name) == first for name in names):
                for name in names:
                    found.pop(name, None)
                found[piece.name] = first
    return found


def _coded_entries(
    spec: ModelSpec,
    forms: Mapping[str, FormName],
    weight_of: Callable[[str], torch.Tensor],
    corrected: Mapping[str, Codes],
    tensors: Mapping[str, SourceTensor],
) -> list[Entry]:
    """Return the codes and scales of all quantised parameters, tensor by tensor of the checkpoint."""

    @lru_cache(maxsize=1)  # the tensors of a parameter are written one after the other
    def rows_of(parameter: str) -> tuple[torch.Tensor, torch.Tensor]:
        if parameter in corrected:
            packed = code_plainly(corrected[parameter])
            return packed.planes.cpu(), packed.scales.cpu()
        codes, scales = quantised_rows(weight_of(parameter), forms[parameter])
        return codes.cpu(), scales.cpu()

    entries = []
    for parameter, form in forms.items():
        for name, place in _places(spec.parameters[parameter], tensors):
            *outer, inputs = tensors[name].shape
            shapes = (*outer, code_bytes(inputs, OWN_FORMS[form].bits)), (*outer, -(-inputs // OWN_FORMS[form].group))
            dtypes = torch.int8 if form == "int8" else torch.uint8, torch.bfloat16
            entries += [
                computed_entry(name + part, dtype, shape, partial(_rows_at, rows_of, parameter, number, place))
                for number, (part, dtype, shape) in enumerate(zip((CODES, SCALES), dtypes, shapes, strict=True))
            ]
    return entries


def _rows_at(
    rows_of: Callable[[str], tuple[torch.Tensor, torch.Tensor]], parameter: str, number: int, place: _Place
) -> torch.Tensor:
    rows = rows_of(parameter)[number]
    return rows[place] if isinstance(place, slice) else rows[place[0]][place[1]]


_Place = slice | tuple[int, slice]
"""Rows of a parameter, or the number of an expert and rows of its matrix."""


def _places(source: Source, tensors: Mapping[str, SourceTensor]) -> Iterator[tuple[str, _Place]]:
    """Yield each tensor of the checkpoint with its rows of a parameter."""
    for number in range(source.num_experts or 1):
        start = 0
        for piece in source.pieces:
            name = piece.name.replace("{e}", str(number)) if source.num_experts is not None else piece.name
            rows = slice(start, start + tensors[name].shape[0])
            yield name, rows if source.num_experts is None else (number, rows)
            start = rows.stop
