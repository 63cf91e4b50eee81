"""Experts of DeepSeek-V3's kind: a bias for choosing only, groups, shared experts.

Source: https://arxiv.org/abs/2412.19437, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COUNTED_EXPERTS, Table, used
from inference.modelling.families.config_values import integer_with_evidence, number_with_evidence
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, shared_width
from inference.modelling.specs.layers import MoESpec

COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
BIASES = ("gate.e_score_correction_bias", "e_score_correction_bias")
GROUPED_MOE: Table = {
    **COUNTED_EXPERTS,
    **used(
        "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group",
        "routed_scaling_factor", "norm_topk_prob",
    ),
}  # fmt: skip


def grouped_moe(
    view: CheckpointView,
    layer: str,
    act: str,
    *,
    top_k: int = 8,
    groups: int = 1,
    top_k_groups: int = 1,
    factor: float = 1.0,
    normalises: bool = True,
    scoring: Literal["sigmoid", "softmax"] = "sigmoid",
    shared_key: str | None = "n_shared_experts",
    mlp: str = "mlp.",
    down: str = "down_proj",
    biases: Sequence[str] = BIASES,
    needs_bias: bool = False,
) -> MoESpec:
    """The spec of a layer's experts, under ``{layer}{mlp}``; the numbers are the family's defaults.

    Args:
        shared_key: config.json's number of shared experts, as wide as the others; None: their width isn't checked.
        down: The file's name of an expert's last matrix.
        biases: Candidates for the file's name of the bias, within ``mlp``.
        needs_bias: It has to be there.

    Raises:
        MissingTensor: It isn't.
    """
    config, base = view.config, layer + mlp
    count, width, width_of_shared = expert_sizes(view, base, shared_key, down=down)
    has_bias = any(base + bias in view.tensors for bias in biases)
    if needs_bias and not has_bias:
        raise MissingTensor(f"tensor {base}{biases[0]} is missing from the checkpoint.", param=base + biases[0])
    groups = integer_with_evidence(view, "moe.num_expert_groups", ("n_group", "num_expert_group"), groups)
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok", "num_experts_per_token"), top_k),
            intermediate_size=width,
            activation=act,
            scoring=scoring,
            normalise_top_k=config.boolean("norm_topk_prob", "moe_renormalize", default=normalises),
            normalise_eps=1e-20,
            routed_scaling_factor=scaling_factor(view, factor),
            num_expert_groups=groups,
            top_k_groups=integer_with_evidence(view, "moe.top_k_groups", ("topk_group",), min(top_k_groups, groups)),
            group_score="top2",
            correction_bias=has_bias,
            shared_intermediate_size=width_of_shared,
        )
    )


def expert_sizes(
    view: CheckpointView,
    base: str,
    shared_key: str | None,
    *,
    keys: Sequence[str] = COUNT_KEYS,
    down: str = "down_proj",
) -> tuple[int, int, int]:
    """Number of experts, width of each, and width of the shared ones together, which config.json may not contradict.

    Raises:
        TensorShapeMismatch: config.json states others.
    """
    count, width = count_experts(view, base + "experts.", down=down)
    check_experts(view, base + "experts.", count, width, keys, "moe_intermediate_size")
    return count, width, shared_experts_width(view, base, width, shared_key)


def shared_experts_width(view: CheckpointView, base: str, width: int, shared_key: str | None) -> int:
    """Width of the shared experts under ``base`` together, each of which is ``width`` wide.

    Raises:
        TensorShapeMismatch: config.json states another number of them.
    """
    found = shared_width(view, f"{base}shared_experts.")
    num_shared = None if shared_key is None else view.config.optional_integer(shared_key, low=0)
    if num_shared is not None and num_shared * width != found:
        raise TensorShapeMismatch(
            f"config.json says {shared_key} {num_shared}, each {width} wide, but {base}shared_experts are "
            f"{found} wide; correct config.json.",
            param=shared_key,
        )
    return found


def scaling_factor(view: CheckpointView, default: float) -> float:
    return number_with_evidence(
        view, "moe.routed_scaling_factor", ("routed_scaling_factor",), default, low=1e-6, high=1e6
    )
