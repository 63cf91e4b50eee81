"""Specs of token mixers side by side in one layer: one normed input, the sum of the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from inference.modelling.specs.parts import Shape, StateTensor, prefixed


class MixerSpec(Protocol):
    """What the spec of every token mixer has."""

    kind: ClassVar[str]

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]: ...

    def state(self) -> tuple[StateTensor, ...]: ...


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """One of the mixers, and factors of what it reads and of what it gives."""

    mixer: MixerSpec
    input_multiplier: float = 1.0
    output_multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """Σ r · mixer(f · x) over the branches (Falcon-H1: attention beside Mamba-2).

    The mixers are of different kinds, and their states have different names: a layer's state holds them side by side.
    """

    kind: ClassVar[str] = "parallel"
    branches: tuple[BranchSpec, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.state()]
        assert len(set(names)) == len(names), names

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Each mixer's, under its kind: ``attention.qkv_proj.weight``."""
        shapes: dict[str, Shape] = {}
        for branch in self.branches:
            shapes |= prefixed(branch.mixer.kind, branch.mixer.parameter_shapes(hidden_size))
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """All mixers' tensors."""
        return tuple(part for branch in self.branches for part in branch.mixer.state())
