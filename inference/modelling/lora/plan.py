"""AdapterPlan: which parameters of a base an adapter changes, checked by names and shapes before any tensor is read.

Standard library only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.config import MAX_RANK, LoraConfig
from inference.modelling.lora.modules import EMBEDDING, TABLES, BaseModules, Place
from inference.modelling.lora.shapes import num_values
from inference.modelling.specs.parts import Shape

_PREFIX = "base_model.model."
_KEY = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.default)?(?:\.(?P<leaf>weight|bias))?"
)
_NESTED = ".base_layer"
FLOATS = ("F32", "F16", "BF16", "F64")
"""dtypes in which an adapter's tensors may be stored."""
_MATRIX = ("lora_A.weight", "lora_B.weight")
_TABLE = ("lora_embedding_A", "lora_embedding_B")


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """A module's ΔW = scale · B A, and where it goes.

    Attributes:
        module: The module's name in the file.
        place: Rows of our parameter.
        a, b: Names of the tensors: (r, inputs) and (outputs, r); of a stack (E · r, inputs) and (outputs, r · E).
        magnitude: DoRA's, (outputs,); None: there is none.
        lora_bias: B's bias (outputs,), if it has one.
        rank: r.
        scale: Factor of B A.
        num_inputs: Values of a row that the module reads.
        is_swapped: The stored tensor is (inputs, outputs).
        num_stacked: Number of the experts, if the adapter's matrices are those of all of them.
        has_swapped_factors: PEFT has taken the stack for (E, inputs, outputs).
        twins: A, B and magnitude under the names of other layers that share the module; they must be equal.
        scaling: Numbers of the adapted module and of the adapter in an X-LoRA, whose scalings multiply B A token by
            token; None: it stands for itself.
    """

    module: str
    place: Place
    a: str
    b: str
    rank: int
    scale: float
    num_inputs: int
    magnitude: str | None = None
    lora_bias: str | None = None
    is_swapped: bool = False
    num_stacked: int = 0
    has_swapped_factors: bool = False
    twins: tuple[tuple[str, str, str | None], ...] = ()
    scaling: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WholePlan:
    """A tensor of the adapter that stands in the place of the base's.

    Attributes:
        name: Of the adapter's tensor.
        place: Rows of our parameter.
    """

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """What an adapter changes.

    Attributes:
        matrices: Low-rank changes.
        biases: Replaced biases.
        wholes: Replaced matrices (``modules_to_save``).
        num_values: Values of all of them.
    """

    config: LoraConfig
    matrices: tuple[MatrixPlan, ...]
    biases: tuple[WholePlan, ...]
    wholes: tuple[WholePlan, ...]
    num_values: int

    @property
    def rank(self) -> int:
        """The greatest rank."""
        return max((matrix.rank for matrix in self.matrices), default=0)

    @property
    def targets(self) -> tuple[str, ...]:
        """Last parts of the changed modules' names, for people."""
        names = [*(matrix.module for matrix in self.matrices), *(whole.place.owner for whole in self.wholes)]
        return tuple(sorted({name.rpartition(".")[2] for name in names}))

    def check_per_request(self) -> None:
        """Refuse an adapter that can only be merged into its base.

        Raises:
            UnsupportedFormat: It replaces a norm, or something else that is no matrix.
        """
        for whole in self.wholes:
            if len(whole.place.stored) != 2:
                raise UnsupportedFormat(
                    f"the adapter replaces {whole.name[:200]}, which is no matrix, so that it can't be changed per "
                    "request; merge the adapter into its base (blazr merge) and serve the result.",
                    param=whole.name[:200],
                )


@dataclass(slots=True)
class _Modules:
    """The adapter's tensors by module."""

    parts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    others: list[str] = field(default_factory=list)


def plan_adapter(config: LoraConfig, tensors: Mapping[str, TensorInfo], base: BaseModules) -> AdapterPlan:
    """Check an adapter against a base.

    Args:
        config: Its configuration.
        tensors: Its tensors.
        base: The modules of the base.

    Raises:
        UnsupportedFormat: A tensor has a type or a place that can't be adapted.
        MissingTensor: A tensor is missing, or the base has no such module.
        TensorShapeMismatch: A shape doesn't fit the base.
    """
    found = _by_module(tensors)
    planner = _Planner(config, tensors, base)
    matrices: list[MatrixPlan] = []
    for module, parts in found.parts.items():
        for matrix in planner.matrices(module, parts):
            _add(matrices, matrix)
    biases: list[WholePlan] = []
    wholes: list[WholePlan] = []
    for name in found.others:
        (biases if name.endswith(".bias") else wholes).extend(planner.whole(name))
    if not matrices and not biases and not wholes:
        raise MissingTensor(
            "the adapter has no LoRA tensors (…lora_A.weight, …lora_B.weight); save it again, with PEFT's "
            "save_pretrained.",
            param="lora_A",
        )
    planner.check_complete([matrix.module for matrix in matrices])
    total = sum(num_values(info.shape) for info in tensors.values())
    return AdapterPlan(config, tuple(matrices), tuple(biases), tuple(wholes), total)


def _add(matrices: list[MatrixPlan], matrix: MatrixPlan) -> None:
    """Add a plan, or its tensors to the plan of the same place, which several layers share."""
    for at, other in enumerate(matrices):
        if other.place == matrix.place:
            twin = (matrix.a, matrix.b, matrix.magnitude)
            matrices[at] = replace(other, twins=(*other.twins, twin))
            return
    matrices.append(matrix)


def _by_module(tensors: Mapping[str, TensorInfo]) -> _Modules:
    found = _Modules()
    for name, info in tensors.items():
        if info.dtype not in FLOATS:
            raise UnsupportedFormat(
                f"{name} of the adapter is stored as {info.dtype}; save it again in one of {', '.join(FLOATS)}.",
                param=name,
            )
        match = _KEY.fullmatch(name)
        if match is None:
            found.others.append(name)
            continue
        leaf = "" if match["leaf"] is None or match["part"] == "lora_magnitude_vector" else f".{match['leaf']}"
        found.parts[module_of(match["module"])][match["part"] + leaf] = name
    return found


def module_of(name: str) -> str:
    """A module's name without PEFT's prefix; a wrapped one keeps its ``base_layer`` parts."""
    return name.removeprefix(_PREFIX).removeprefix("base_model.")


class _Planner:
    """Makes the plans of single modules.

    Args:
        config: The adapter's configuration.
        tensors: Its tensors.
        base: The modules of the base.
    """

    def __init__(self, config: LoraConfig, tensors: Mapping[str, TensorInfo], base: BaseModules) -> None:
        self._config, self._tensors, self._base = config, tensors, base

    def matrices(self, module: str, parts: dict[str, str]) -> list[MatrixPlan]:
        """The plans of one module's matrices, one for each parameter that it became."""
        kind = _TABLE if _TABLE[0] in parts or _TABLE[1] in parts else _MATRIX
        for one, other in (kind, kind[::-1]):
            if one not in parts:
                there = parts.get(other, next(iter(parts.values())))
                raise MissingTensor(
                    f"the adapter has {there}, but no {one} for {module}; save it again as a whole.", param=module
                )
        a, b = (self._tensors[parts[name]] for name in kind)
        for name, info in zip(kind, (a, b), strict=True):
            if len(info.shape) != 2:
                raise self._mismatch(parts[name], info.shape, "a matrix")
        plain = module.replace(_NESTED, "")
        places = self._base.find(plain)
        if not places and plain.rpartition(".")[2] == "experts":
            return [self._stack(module, plain, parts, a.shape, b.shape)]
        if not places:
            raise self._unknown(plain)
        return [self._matrix(plain, place, parts, kind) for place in places]

    def _matrix(self, module: str, place: Place, parts: dict[str, str], kind: tuple[str, str]) -> MatrixPlan:
        (rank, inputs), (outputs, columns) = (self._tensors[parts[name]].shape for name in kind)
        if len(place.stored) != 2 or (place.leaf != "weight" and place.expert is None):
            raise UnsupportedFormat(
                f"{module} is no matrix in the base (its shape is {list(place.stored)}), so an adapter can't change "
                "it per request; merge the adapter into the base with PEFT (merge_and_unload).",
                param=module,
            )
        if place.expert is not None and parts.keys() != {*kind}:
            raise UnsupportedFormat(
                f"the adapter has a magnitude or a bias for the expert {module}, which can't be changed per request; "
                "merge the adapter into its base (blazr merge) and serve the result.",
                param=module,
            )
        if place.piece.reshape is not None or place.piece.parts is not None:
            raise UnsupportedFormat(
                f"{module} becomes several matrices in the base's network, so an adapter can't change it per request; "
                "merge the adapter into the base with PEFT (merge_and_unload).",
                param=module,
            )
        stored, is_table = place.stored, kind is _TABLE
        if is_table != (place.owner in TABLES and not place.is_head):
            raise UnsupportedFormat(
                f"{parts[kind[0]]} isn't what an adapter of {module} has; {_expected_kind(not is_table)} is needed.",
                param=module,
            )
        if is_table:
            if place.owner == EMBEDDING:
                self._check_vocabulary(parts[kind[0]], inputs)
            required, found = stored[::-1], (outputs, inputs)
            is_swapped = True
        else:
            is_swapped = place.piece.transpose
            required, found = (stored[::-1] if is_swapped else stored), (outputs, inputs)
        if place.owner in ("lm_head", EMBEDDING) and not is_table:
            self._check_vocabulary(parts[kind[1]], outputs)
        self._check_rank(module, parts[kind[0]], rank)
        if columns != rank:
            raise self._mismatch(parts[kind[1]], (outputs, columns), f"{[outputs, rank]}, the rank of its lora_A")
        if found[1] != required[1]:
            raise self._mismatch(
                parts[kind[0]], (rank, inputs), f"{[rank, required[1]]}: {place.piece.name} is {list(stored)}"
            )
        if found[0] != required[0]:
            raise self._mismatch(
                parts[kind[1]], (outputs, rank), f"{[required[0], rank]}: {place.piece.name} is {list(stored)}"
            )
        magnitude = self._magnitude(module, parts, outputs)
        return MatrixPlan(
            module, place, parts[kind[0]], parts[kind[1]], rank, self._config.scale_of(module, rank), inputs,
            magnitude=magnitude, lora_bias=self._lora_bias(parts, outputs), is_swapped=is_swapped,
        )  # fmt: skip

    def _stack(self, module: str, plain: str, parts: dict[str, str], a: Shape, b: Shape) -> MatrixPlan:
        """A stacked parameter of experts: which one it is, the shapes say, or else how deep PEFT wrapped it."""
        names = [name for name in ("gate_up_proj", "up_proj", "down_proj") if self._base.find_stack(plain, name)]
        if not names:
            raise self._unknown(plain)
        fitting = [fit for name in names if (fit := self._fit_stack(plain, name, a, b)) is not None]
        if not fitting:
            shapes = ", ".join(f"{name} {list(self._base.find_stack(plain, name)[0].stored)}" for name in names)
            raise self._mismatch(parts["lora_A.weight"], a, f"that of {plain}: {shapes}")
        fit = fitting[0]
        if len(fitting) > 1:
            depth, order = module.count(_NESTED), self._stack_order()
            fit = next((one for one in fitting if order and order[::-1][depth % len(order)] == one[0]), fit)
        name, place, rank, is_swapped = fit
        self._check_rank(f"{plain}.{name}", parts["lora_A.weight"], rank)
        if "lora_magnitude_vector" in parts or "lora_B.bias" in parts:
            raise UnsupportedFormat(
                f"the adapter has a magnitude or a bias for the experts {plain}; PEFT makes none.", param=plain
            )
        return MatrixPlan(
            f"{plain}.{name}", place, parts["lora_A.weight"], parts["lora_B.weight"], rank,
            self._config.scale_of(f"{plain}.{name}", rank), b[0] if is_swapped else a[1], num_stacked=a[0] // rank,
            has_swapped_factors=is_swapped,
        )  # fmt: skip

    def _fit_stack(self, module: str, name: str, a: Shape, b: Shape) -> tuple[str, Place, int, bool] | None:
        """(parameter, place, rank, whether A reads what the stored tensor has as its rows) if the shapes fit."""
        place = self._base.find_stack(module, name)[0]
        if len(place.stored) != 3:
            return None
        count, rows, columns = place.stored
        rank = self._config.rank_of(f"{module}.{name}")
        # Experts that do nothing follow those with matrices (LongCat-Flash).
        if a[0] != b[1] or a[0] % rank or a[0] // rank < count:
            return None
        # PEFT reads the middle axis of the stack as inputs where the module says that it is transposed.
        if (b[0], a[1]) == (rows, columns):
            return name, place, rank, False
        return (name, place, rank, True) if (b[0], a[1]) == (columns, rows) else None

    def _stack_order(self) -> list[str]:
        return [name.rpartition(".")[2] for name in self._config.target_parameters]

    def whole(self, name: str) -> list[WholePlan]:
        """The plans of a tensor that replaces the base's."""
        module, _, leaf = module_of(name).rpartition(".")
        module = module.replace(_NESTED, "").removesuffix(".modules_to_save").removesuffix(".modules_to_save.default")
        if leaf not in ("weight", "bias"):
            raise UnsupportedFormat(
                f"the adapter has a tensor {name[:200]}, which is no part of a LoRA adapter that is known; save the "
                "adapter without it.",
                param=name,
            )
        places = self._base.find(module, leaf)
        if not places:
            raise self._unknown(module if leaf == "weight" else f"{module}.{leaf}")
        shape = self._tensors[name].shape
        if leaf == "weight" and (places[0].owner in ("lm_head", EMBEDDING)):
            self._check_vocabulary(name, shape[0])
        if any(tuple(shape) != tuple(place.stored) for place in places):
            raise self._mismatch(name, shape, f"{list(places[0].stored)} in the base")
        return [WholePlan(name, place) for place in places]

    def check_complete(self, modules: Sequence[str]) -> None:
        """Refuse an adapter without a tensor for a name of ``target_modules`` that the base has."""
        targets = self._config.target_modules
        if isinstance(targets, str) or self._config.excludes_modules:
            return  # an expression; what it matches is in the file
        for target in targets:
            if self._base.has_matrix(target) and not any(f".{name}".endswith(f".{target}") for name in modules):
                raise MissingTensor(
                    f"adapter_config.json names {target[:100]} in target_modules, and the base has it, but the adapter "
                    "has no tensors for it; save the adapter again as a whole.",
                    param=target[:100],
                )

    def _magnitude(self, module: str, parts: dict[str, str], count: int) -> str | None:
        name = parts.get("lora_magnitude_vector")
        if name is None:
            if self._config.is_dora:
                raise MissingTensor(
                    f"adapter_config.json says use_dora, but {module} has no lora_magnitude_vector; save the adapter "
                    "again as a whole.",
                    param=module,
                )
            return None
        if num_values(self._tensors[name].shape) != count:
            raise self._mismatch(name, self._tensors[name].shape, f"{[count]}")
        return name

    def _lora_bias(self, parts: dict[str, str], outputs: int) -> str | None:
        name = parts.get("lora_B.bias")
        if name is not None and tuple(self._tensors[name].shape) != (outputs,):
            raise self._mismatch(name, self._tensors[name].shape, f"{[outputs]}")
        return name

    def _check_rank(self, module: str, name: str, rank: int) -> None:
        stated = self._config.rank_of(module)
        if rank > MAX_RANK:
            raise TensorShapeMismatch(f"{name} has rank {rank}; at most {MAX_RANK} can be served.", param=name)
        if rank != stated:
            raise TensorShapeMismatch(
                f"{name} has rank {rank}, adapter_config.json says {stated} (r, rank_pattern); the two files belong to "
                "different adapters.",
                param=name,
            )

    def _check_vocabulary(self, name: str, count: int) -> None:
        if count != self._base.vocab_size:
            raise TensorShapeMismatch(
                f"{name} is for a vocabulary of {count} tokens, the base has {self._base.vocab_size}: the adapter was "
                f"trained with another tokenizer; use the base that it was trained on{self._named_base()}.",
                param=name,
            )

    def _mismatch(self, name: str, shape: Shape, required: str) -> TensorShapeMismatch:
        return TensorShapeMismatch(
            f"{name} of the adapter has shape {list(shape)}; it must be {required}. Use the base that it was trained "
            f"on{self._named_base()}.",
            param=name,
        )

    def _unknown(self, module: str) -> MissingTensor:
        return MissingTensor(
            f"the adapter changes {module[:200]}, which the base doesn't have (it has {self._base.similar(module)}); "
            f"use the base that it was trained on{self._named_base()}.",
            param=module,
        )

    def _named_base(self) -> str:
        return f", {self._config.base_model}" if self._config.base_model else ""


def _expected_kind(is_table: bool) -> str:
    return "lora_embedding_A and lora_embedding_B" if is_table else "lora_A.weight and lora_B.weight"


def not_finite(name: str) -> CorruptCheckpoint:
    """The error of a tensor with values that are infinite or no numbers."""
    return CorruptCheckpoint(
        f"{name} of the adapter has values that are infinite or no numbers, as after a training that has diverged; "
        "take an earlier checkpoint of it.",
        param=name,
    )
