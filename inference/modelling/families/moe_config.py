"""Count experts, check their routing, and name the sources of their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size, integer_with_evidence
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.headers import matrix_shape, stack_shape
from inference.modelling.families.mlp_config import mlp_sources
from inference.modelling.specs.layers import MLPSpec, MoESpec
from inference.modelling.specs.parts import prefixed
from inference.modelling.specs.sources import Piece, Source, tensor


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How a family calls its experts' matrices (per-expert files); stacked files have one spelling."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


USUAL_NAMES = ExpertNames()


def count_experts(
    view: CheckpointView, base: str, *, down: str = "down_proj", is_transposed: bool = False
) -> tuple[int, int]:
    """(number of experts, width of each) of the experts under ``base`` (``…experts.``), stacked or not.

    Args:
        is_transposed: As in ``expert_sources``.

    Raises:
        MissingTensor: Neither form is there, or an expert is missing.
    """
    stacked = base + "down_proj"
    if stacked in view.tensors:
        count, outputs, inputs = stack_shape(view.tensors, stacked)
        return count, outputs if is_transposed else inputs
    pattern = re.compile(re.escape(base) + r"(\d{1,6})\." + re.escape(down) + r"\.weight$")
    numbers = {int(match[1]) for match in map(pattern.match, view.tensors) if match}
    if not numbers:
        raise MissingTensor(f"no experts: neither {stacked} nor {base}0.{down}.weight is there.", param=stacked)
    if len(numbers) != max(numbers) + 1:
        missing = min(set(range(max(numbers))) - numbers)
        raise MissingTensor(f"tensor {base}{missing}.{down}.weight is missing.", param=f"{base}{missing}.{down}.weight")
    return len(numbers), matrix_shape(view.tensors, f"{base}0.{down}.weight")[1]


def expert_sources(
    view: CheckpointView,
    base: str,
    num_experts: int,
    *,
    gated: bool = True,
    names: ExpertNames = USUAL_NAMES,
    is_transposed: bool = False,
) -> dict[str, Source]:
    """Sources of ``experts.*``: ``{base}gate_up_proj`` stacked out × in, or one tensor for each expert.

    Args:
        is_transposed: The stacks are in × out.
    """
    up_name = "gate_up_proj" if gated else "up_proj"
    if base + "down_proj" in view.tensors:
        return {
            f"experts.{leaf}": Source((Piece(base + leaf, transpose=is_transposed),)) for leaf in (up_name, "down_proj")
        }
    ups = (names.gate, names.up) if gated else (names.up,)
    pieces = tuple(Piece(f"{base}{{e}}.{name}.weight") for name in ups)
    return {
        f"experts.{up_name}": Source(pieces, num_experts),
        "experts.down_proj": Source((Piece(f"{base}{{e}}.{names.down}.weight"),), num_experts),
    }


def moe_sources(
    view: CheckpointView,
    spec: MoESpec,
    base: str,
    *,
    router: str = "gate",
    shared: str = "shared_expert.",
    names: ExpertNames = USUAL_NAMES,
    correction_bias: str | None = None,
    is_transposed: bool = False,
    experts: str = "experts.",
) -> dict[str, Source]:
    """Sources of a ``MoESpec``'s parameters under ``base`` (``…mlp.``), experts stacked or one by one.

    Args:
        router: Name of the router, within ``base``.
        shared: Start of the shared expert's tensor names, within ``base``.
        correction_bias: Its name within ``base``; None: ``e_score_correction_bias`` of the router.
        is_transposed: As in ``expert_sources``.
        experts: Start of the routed experts' tensor names, within ``base``.
    """
    sources = {"router.weight": tensor(f"{base}{router}.weight")}
    if spec.correction_bias:
        bias = f"{base}{correction_bias or router + '.e_score_correction_bias'}"
        sources["router.correction_bias"] = Source((Piece(bias, reshape=(spec.num_choices,)),))
    sources |= expert_sources(
        view, base + experts, spec.num_experts, gated=spec.gated, names=names, is_transposed=is_transposed
    )
    if spec.shared_intermediate_size:
        dense = MLPSpec(spec.shared_intermediate_size, spec.activation, spec.gated)
        sources |= prefixed("shared_expert", mlp_sources(view, dense, base, mlp=shared))
    if spec.shared_gate:
        sources["shared_expert_gate.weight"] = tensor(f"{base}shared_expert_gate.weight")
    return sources


def check_experts(view: CheckpointView, base: str, count: int, width: int, count_keys: Sequence[str], key: str) -> None:
    """Compare the number and the width of the experts under ``base`` with config.json's.

    Raises:
        TensorShapeMismatch: config.json states others.
    """
    check_size(view, count, f"experts under {base[:-1]}", *count_keys)
    check_size(view, width, f"width of an expert under {base[:-1]}", key)
    view.facts.add("moe.num_experts", count, "expert tensors")


def routed_experts(
    view: CheckpointView,
    base: str,
    act: str,
    *,
    top_k: int,
    width_key: str = "moe_intermediate_size",
    router: str = "gate",
    shared: str = "",
    shared_key: str = "shared_expert_intermediate_size",
    correction_bias: str | None = None,
    needs_bias: bool = False,
    is_transposed: bool = False,
    **options: Any,
) -> tuple[MoESpec, dict[str, Source]]:
    """The experts under ``base``, whose number config.json calls ``num_experts``, and their sources.

    Args:
        width_key: What config.json calls the width of one.
        top_k: How many are chosen, when config.json doesn't say.
        router, correction_bias: As in ``moe_sources``; no bias where there is no tensor of that name.
        needs_bias: That tensor has to be there.
        shared: Start of the shared expert's tensor names, within ``base``; empty: there is none.
        shared_key: What config.json calls its width.
        is_transposed: As in ``expert_sources``.
        options: Further attributes of ``MoESpec``.
    """
    count, width = count_experts(view, base + "experts.", is_transposed=is_transposed)
    check_experts(view, base + "experts.", count, width, ("num_experts", "num_local_experts"), width_key)
    width_of_shared = shared_width(view, base + shared) if shared else 0
    if shared:
        check_size(view, width_of_shared, f"width of {base}{shared[:-1]}", shared_key)
    spec = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), top_k),
            intermediate_size=width,
            activation=act,
            correction_bias=correction_bias is not None and (needs_bias or base + correction_bias in view.tensors),
            shared_intermediate_size=width_of_shared,
            **options,
        )
    )
    sources = moe_sources(
        view,
        spec,
        base,
        router=router,
        shared=shared,
        correction_bias=correction_bias,
        is_transposed=is_transposed,
    )
    return spec, sources


def shared_width(view: CheckpointView, shared: str) -> int:
    """Width of the expert under ``shared`` that every row passes; 0: there is none."""
    down = shared + "down_proj.weight"
    return matrix_shape(view.tensors, down)[1] if down in view.tensors else 0


def has_router(view: CheckpointView, layer: str, router: str = "mlp.gate") -> bool:
    """Whether the layer has experts rather than a dense MLP; ``router`` is the file's name of what chooses them."""
    return f"{layer}{router}.weight" in view.tensors


def check_dense_layers(
    view: CheckpointView,
    layout: DecoderLayout,
    key: str,
    is_stated_sparse: Callable[[int], bool],
    *,
    router: str = "mlp.gate",
) -> None:
    """Compare config.json's dense layers with those without a router.

    Raises:
        TensorShapeMismatch: They differ in a layer; ``key`` is the config key that says so.
    """
    for number in range(layout.num_layers):
        stated, layer = is_stated_sparse(number), layout.layer(number)
        if stated != has_router(view, layer, router):
            kinds = ("experts", "a dense MLP") if stated else ("a dense MLP", "experts")
            raise TensorShapeMismatch(
                f"config.json gives layer {number} {kinds[0]} ({key}), but {layer[:-1]} has the tensors of {kinds[1]}; "
                "correct config.json.",
                param=key,
            )


def check_layer_kinds(view: CheckpointView, layout: DecoderLayout, *, router: str = "mlp.gate") -> None:
    """``check_dense_layers`` by ``mlp_layer_types``, where config.json has it.

    Raises:
        CorruptCheckpoint: It doesn't have an entry for each layer.
    """
    kinds = view.config.strings("mlp_layer_types")
    if not kinds:
        return
    if len(kinds) < layout.num_layers:  # layers that draft may follow
        raise CorruptCheckpoint(
            f"config.json: mlp_layer_types has {len(kinds)} entries for {layout.num_layers} layers.",
            param="mlp_layer_types",
        )
    check_dense_layers(view, layout, "mlp_layer_types", lambda number: kinds[number] == "sparse", router=router)


def check_sparse_steps(view: CheckpointView, layout: DecoderLayout) -> None:
    """``check_dense_layers`` by Qwen's ``mlp_only_layers`` and ``decoder_sparse_step``."""
    dense = set(view.config.integers("mlp_only_layers"))
    step = view.config.integer("decoder_sparse_step", default=1)
    key = "mlp_only_layers, decoder_sparse_step"
    check_dense_layers(view, layout, key, lambda number: number not in dense and (number + 1) % step == 0)


def check_routing(spec: MoESpec) -> MoESpec:
    """The spec, if its routing can be carried out.

    Raises:
        CorruptCheckpoint: More experts are to be chosen than there are, or the groups don't divide them.
    """
    experts, groups = spec.num_experts, spec.num_expert_groups
    choices = experts + spec.num_identity_experts
    if spec.top_k > choices:
        raise CorruptCheckpoint(
            f"config.json: num_experts_per_tok is {spec.top_k}, but there are {choices} experts.",
            param="num_experts_per_tok",
        )
    if experts % groups or spec.top_k_groups > groups:
        raise CorruptCheckpoint(
            f"config.json: {experts} experts in {groups} groups, {spec.top_k_groups} of them chosen, is impossible.",
            param="n_group",
        )
    if groups > 1 and spec.top_k > spec.top_k_groups * (experts // groups):
        raise CorruptCheckpoint(
            f"config.json: {spec.top_k_groups} groups of {experts // groups} experts don't hold the "
            f"{spec.top_k} that num_experts_per_tok asks for.",
            param="topk_group",
        )
    if spec.group_score == "top2" and groups > 1 and experts // groups < 2:
        raise CorruptCheckpoint(f"config.json: {groups} groups of one expert each can't be scored.", param="n_group")
    return spec
