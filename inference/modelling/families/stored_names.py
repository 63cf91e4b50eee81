"""Read published files whose tensors have names of their own by the names that transformers gives them in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import OTHER_PARTS
from inference.modelling.families.config import CheckpointView, TensorTable
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import Source

Rules = Sequence[tuple[str, str]]
"""Regular expressions of parts of stored names, and what stands there in memory; each applies to what the last gave."""


def names_in_memory(view: CheckpointView, rules: Rules) -> tuple[CheckpointView, Mapping[str, str]]:
    """The checkpoint under the names in memory, and from each of these to the name in the files.

    Names of other parts than the text model stay as they are.

    Raises:
        CorruptCheckpoint: Two tensors get the same name.
    """
    stored: dict[str, str] = {}
    for name in view.tensors:
        found = name if OTHER_PARTS.names.search(name) else _renamed(name, rules)
        if found in stored:
            raise CorruptCheckpoint(
                f"{name} and {stored[found]} are one tensor under two names; remove one of them.", param=name
            )
        stored[found] = name
    table = TensorTable({found: view.tensors[name] for found, name in stored.items()})
    return replace(view, tensors=table), stored


def _renamed(name: str, rules: Rules) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def with_stored_names(spec: ModelSpec, stored: Mapping[str, str]) -> ModelSpec:
    """The spec, with sources that name the tensors of the files; ``stored`` from ``names_in_memory``.

    Raises:
        CorruptCheckpoint: The names of a layer's experts aren't alike.
    """
    return replace(spec, parameters={name: _stored(source, stored) for name, source in spec.parameters.items()})


def _stored(source: Source, stored: Mapping[str, str]) -> Source:
    """The source by the names in the files; of experts one by one, by that of the first."""
    pieces = []
    for piece in source.pieces:
        name = stored[piece.name.replace("{e}", "0")]
        if "{e}" in piece.name:
            name = name.replace(".experts.0.", ".experts.{e}.")
            _check_alike(piece.name, name, source.num_experts or 0, stored)
        pieces.append(replace(piece, name=name))
    return replace(source, pieces=tuple(pieces))


def _check_alike(in_memory: str, name: str, count: int, stored: Mapping[str, str]) -> None:
    """Check that the files' names of ``count`` experts are ``name`` with their numbers: a source has one name for all.

    Raises:
        CorruptCheckpoint: One has another naming.
    """
    for number in range(count):
        found, expected = stored[in_memory.replace("{e}", str(number))], name.replace("{e}", str(number))
        if found != expected:
            raise CorruptCheckpoint(
                f"{name.replace('{e}', '0')} and {found} are in two namings; the experts of a layer must be in one. "
                f"Rename the latter to {expected}.",
                param=found,
            )
