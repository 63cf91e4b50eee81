"""Inspect a LoRA adapter against its base: headers and digest, without torch and without the base's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import AdapterPlan
from inference.modelling.lora.xlora_plan import XLoraPlan
from inference.modelling.spec import ModelSpec
from models_registry.detection.adapter_tokenizer import check_tokenizer, comparable_file
from models_registry.detection.adapter_values import check_values
from models_registry.detection.inspection import Inspection
from models_registry.detection.xlora_files import read_files

_EXPANSIONS = ("k_b_proj", "v_b_proj")
"""Matrices of latent attention that the network keeps whole for each adapter, and not as their factors alone."""


@dataclass(frozen=True, slots=True)
class InspectedAdapter:
    """What an adapter's files say, once they are known to fit.

    Attributes:
        digest: SHA-256 of their content.
        rank: The greatest.
        targets: Last parts of the changed modules' names.
        num_values: Numbers that the adapter keeps in memory.
        size_bytes: Of its tensors in the file.
        is_xlora: Whether it is an X-LoRA, whose requests have states beside the base's.
    """

    digest: str
    rank: int
    targets: tuple[str, ...]
    num_values: int
    size_bytes: int
    is_xlora: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A JSON form that ``from_dict`` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> InspectedAdapter:
        return cls(**{**payload, "targets": tuple(payload["targets"])})


def base_facts(base: Inspection) -> dict[str, Any]:
    """What ``inspect_adapter`` needs to know of a base, as JSON: spec, shapes by name, path of tokenizer file."""
    names = {name for source in base.spec.parameters.values() for name in source.tensor_names()}
    shapes = {name: info.shape for name, info in base.tensors.items()}
    shapes |= {item.name: item.shape for item in base.spec.encoded}
    tokenizer = comparable_file(base.tokenizer.path)
    return {
        "spec": base.spec.to_dict(),
        "shapes": {name: list(shape) for name, shape in shapes.items() if name in names},
        "tokenizer": None if tokenizer is None else str(tokenizer),
    }


def inspect_adapter(path: Path, base: Mapping[str, Any]) -> InspectedAdapter:
    """Read an adapter's files and check them against a base.

    Args:
        path: The directory that PEFT has written, or its safetensors file.
        base: As ``base_facts`` gives it.

    Raises:
        CheckpointError: The files are broken, or don't fit; names the tensor, and both shapes or its values.
    """
    files = read_files(path)
    check_tokenizer(files, None if base["tokenizer"] is None else Path(base["tokenizer"]))
    shapes = {name: tuple(shape) for name, shape in base["shapes"].items()}
    plan = files.plan(BaseModules(ModelSpec.from_dict(base["spec"]), shapes.__getitem__))
    is_xlora = isinstance(plan, XLoraPlan)
    if isinstance(plan, AdapterPlan):  # an X-LoRA's plan has refused what can't be scaled
        plan.check_per_request()
    check_values(files)
    return InspectedAdapter(files.digest(), plan.rank, plan.targets, _num_values(plan), files.size_bytes, is_xlora)


def _num_values(plan: AdapterPlan | XLoraPlan) -> int:
    if isinstance(plan, XLoraPlan):
        # The classifier is in float32: each of its numbers takes as much as two of the base's dtype, or less.
        return 2 * plan.num_values - sum(adapter.num_values for adapter in plan.adapters)
    whole = (
        matrix.place.num_rows * matrix.num_inputs
        for matrix in plan.matrices
        if matrix.place.owner.rpartition(".")[2] in _EXPANSIONS
    )
    return plan.num_values + sum(whole)
