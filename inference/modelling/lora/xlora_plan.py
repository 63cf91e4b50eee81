"""XLoraPlan: an X-LoRA checked against its base by names and shapes: its adapters, and the classifier that scales them.

Standard library only. Source: X-LoRA, https://arxiv.org/abs/2402.07148.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from inference.errors import CheckpointError, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.config import LoraConfig
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import FLOATS, AdapterPlan, plan_adapter
from inference.modelling.lora.shapes import num_values
from inference.modelling.lora.xlora_config import Ordering, XLoraConfig
from inference.modelling.specs.parts import Shape

_EXPANSIONS = ("k_b_proj", "v_b_proj")
_UNTRAINED = ".base_layer."
"""In the name of a table of the base that PEFT saves beside an adapter of it; ``load_xlora`` refuses one that differs
from the base's."""
_LINEAR = re.compile(r"(?:.*\.)?(?P<name>layers\.\d{1,3}|inner\.\d{1,3}|last)\.(?P<leaf>weight|bias)")
_ORDER = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
ORDERED_FAMILIES = frozenset({"cohere", "gemma", "gemma2", "llama", "mistral", "olmo2", "qwen2", "qwen3"})
"""Families whose modules transformers makes in the order of ``_ORDER``, so that an X-LoRA's numbers are known."""


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """A matrix of the classifier: names of its tensors, ``bias`` None if it has none."""

    weight: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class XLoraPlan:
    """What an X-LoRA changes.

    Attributes:
        adapters: Its adapters in the order of the scalings; each of their matrices has its ``scaling``.
        classifier: Its matrices, the first one first.
        num_scaled: Number of the modules that the classifier scales apart; 1: all are scaled alike.
        num_values: Values of all adapters and of the classifier.
    """

    config: XLoraConfig
    adapters: tuple[AdapterPlan, ...]
    classifier: tuple[LinearPlan, ...]
    num_scaled: int
    num_values: int

    @property
    def rank(self) -> int:
        """The greatest rank."""
        return max(adapter.rank for adapter in self.adapters)

    @property
    def targets(self) -> tuple[str, ...]:
        """Last parts of the changed modules' names, for people."""
        return tuple(sorted({target for adapter in self.adapters for target in adapter.targets}))


def plan_xlora(
    config: XLoraConfig,
    classifier: Mapping[str, TensorInfo],
    adapters: Sequence[tuple[LoraConfig, Mapping[str, TensorInfo]]],
    ordering: Ordering | None,
    base: BaseModules,
) -> XLoraPlan:
    """Check an X-LoRA against a base.

    Args:
        config: Its configuration.
        classifier: Tensors of the classifier.
        adapters: Configuration and tensors of each adapter, in the order of the scalings.
        ordering: What an ordering file says; None: there is none.

    Raises:
        UnsupportedFormat: An adapter changes something that can't be scaled, or the modules' order isn't known.
        MissingTensor: A tensor is missing, or the base has no such module.
        TensorShapeMismatch: A shape doesn't fit the base or the configuration.
    """
    if config.hidden_size != base.hidden_size:
        raise TensorShapeMismatch(
            f"{config.file} says hidden_size {config.hidden_size}, the base's is {base.hidden_size}; use the base that "
            f"it was trained on{f', {config.base_model}' if config.base_model else ''}.",
            param="hidden_size",
        )
    plans = []
    for (own, tensors), (name, _) in zip(adapters, config.adapters, strict=True):
        with naming_adapter(name):
            plans.append(plan_adapter(own, tensors, base))
        _check_scalable(plans[-1], name)
    numbers = _module_numbers(config, plans, ordering, base)
    count = max(numbers.values(), default=0) + 1
    if config.is_layerwise and ordering is not None and ordering.layers:
        count = len(ordering.layers)  # it may number modules that no adapter changes
    scaled = tuple(
        replace(plan, matrices=tuple(replace(m, scaling=(numbers[m.module], number)) for m in plan.matrices))
        for number, plan in enumerate(plans)
    )
    linears = _classifier(config, classifier, count * len(plans))
    total = sum(plan.num_values for plan in plans) + sum(num_values(info.shape) for info in classifier.values())
    return XLoraPlan(config, scaled, linears, count, total)


@contextmanager
def naming_adapter(name: str) -> Iterator[None]:
    """Let an error of one of an X-LoRA's adapters say which one it is."""
    try:
        yield
    except CheckpointError as error:
        message = f"adapter {name[:60]!r} of the X-LoRA: {error.message}"
        raise type(error)(message, param=error.param) from None


def _check_scalable(plan: AdapterPlan, name: str) -> None:
    """Refuse an adapter with more than products of matrices that one number can scale."""
    found = ""
    if plan.config.is_dora or any(matrix.magnitude is not None for matrix in plan.matrices):
        found = "use_dora"
    elif plan.config.has_lora_bias or any(matrix.lora_bias is not None for matrix in plan.matrices):
        found = "lora_bias"
    elif replaced := [whole.name for whole in (*plan.biases, *plan.wholes) if _UNTRAINED not in whole.name]:
        found = replaced[0]
    else:
        for matrix in plan.matrices:
            place = matrix.place
            is_row_product = place.expert is None and place.owner.rpartition(".")[2] not in _EXPANSIONS
            if matrix.num_stacked or matrix.twins or not is_row_product:
                found = matrix.module
    if found:
        raise UnsupportedFormat(
            f"adapter {name[:60]!r} of the X-LoRA has {found[:200]}, which can't be scaled token by token; leave it "
            "out of the training, or serve the adapter by itself.",
            param=found[:200],
        )


def _module_numbers(
    config: XLoraConfig, plans: Sequence[AdapterPlan], ordering: Ordering | None, base: BaseModules
) -> dict[str, int]:
    """The number among the classifier's scalings of each adapted module, by name."""
    modules = list(dict.fromkeys(matrix.module for plan in plans for matrix in plan.matrices))
    if not config.is_layerwise:
        return dict.fromkeys(modules, 0)
    if ordering is not None and ordering.layers:
        missing = [module for module in modules if module not in ordering.layers]
        if missing:
            raise MissingTensor(
                f"{ordering.file} has no number for {missing[0][:200]}, which an adapter changes; add it.",
                param=missing[0][:200],
            )
        return {module: ordering.layers[module] for module in modules}
    unknown = [module for module in modules if module.rpartition(".")[2] not in _ORDER]
    if unknown or base.model_type not in ORDERED_FAMILIES:
        what = unknown[0][:200] if unknown else f"modules of {base.model_type}"
        raise UnsupportedFormat(
            f"{config.file} has layerwise_scalings, and the order of {what} among them isn't known; add an "
            "ordering.json that numbers the adapted modules (layers), as mistral.rs reads it.",
            param="layerwise_scalings",
        )
    return {module: number for number, module in enumerate(sorted(modules, key=_place_in_model))}


def _place_in_model(module: str) -> tuple[int, int]:
    match = re.search(r"\.(\d{1,5})\.", f".{module}.")
    last = _ORDER.index(module.rpartition(".")[2])
    layer = int(match[1]) if match is not None else -1 if last == 0 else 1 << 20
    return layer, last


def _classifier(config: XLoraConfig, tensors: Mapping[str, TensorInfo], num_outputs: int) -> tuple[LinearPlan, ...]:
    """The classifier's matrices in their order, with shapes as the configuration says."""
    found: dict[str, dict[str, str]] = {}
    for name, info in tensors.items():
        match = _LINEAR.fullmatch(name)
        if match is None or info.dtype not in FLOATS:
            raise UnsupportedFormat(
                f"{name[:200]} ({info.dtype}) is no tensor of an X-LoRA's classifier that is known; save the "
                "classifier again, in floats.",
                param=name[:200],
            )
        found.setdefault(match["name"], {})[match["leaf"]] = name
    names = sorted(found, key=lambda name: 1 << 20 if name == "last" else int(name.rpartition(".")[2]))
    if len(names) != config.depth:
        raise MissingTensor(
            f"the classifier has {len(names)} matrices, {config.file} says xlora_depth {config.depth}; the two files "
            "belong to different X-LoRAs.",
            param="xlora_depth",
        )
    widths = [config.hidden_size, *[config.width] * (config.depth - 1), num_outputs]
    plans = []
    for number, name in enumerate(names):
        parts, required = found[name], (widths[number + 1], widths[number])
        if "weight" not in parts:
            raise MissingTensor(
                f"the classifier has {parts['bias']}, but no {name}.weight; save it again as a whole.", param=name
            )
        _check_shape(tensors, parts["weight"], required)
        if "bias" in parts:
            _check_shape(tensors, parts["bias"], required[:1])
        plans.append(LinearPlan(parts["weight"], parts.get("bias")))
    return tuple(plans)


def _check_shape(tensors: Mapping[str, TensorInfo], name: str, required: Shape) -> None:
    shape = tuple(tensors[name].shape)
    if shape != required:
        raise TensorShapeMismatch(
            f"{name} of the classifier has shape {list(shape)}; it must be {list(required)} (hidden_size, xlora_size, "
            "and an output for each adapter, with layerwise_scalings for each module, too). Use the classifier that "
            "was trained with these adapters.",
            param=name,
        )
