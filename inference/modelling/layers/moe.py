"""Mixture of experts: the router, the experts grouped so that each runs once per step, the shared expert.

Shape letters: T rows, h hidden, E experts, k experts of a row, f width of an expert, G expert groups.

Sources: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; DeepSeek-V2,
https://arxiv.org/abs/2405.04434, section 2.2 (groups, shared experts); DeepSeek-V3,
https://arxiv.org/abs/2412.19437, section 2.1.2 (sigmoid scores, correction bias).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.backends.backend import use_triton
from inference.modelling.backends.native import library
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import MLP, NATIVE_ACTIVATIONS, activate
from inference.modelling.layers.packed import (
    NATIVE_DTYPES,
    NativePacked,
    PlainQuantised,
    native_form,
    pack_native,
    quantise,
)
from inference.modelling.quantisation import Kind
from inference.modelling.spec import MLPSpec, MoESpec

if TYPE_CHECKING:
    from inference.modelling.backends.triton.quantised import DeviceQuantised


def choose_experts(
    logits: torch.Tensor, spec: MoESpec, correction_bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts each row goes to, and with what weight.

    Args:
        logits: (T, E) float32, of the router.
        spec: The rules.
        correction_bias: (E,) float32, added for choosing only; None without ``spec.correction_bias``.

    Returns:
        Weights (T, k) float32 and expert numbers (T, k) int64, best first; of equal scores the lowest
        number wins, so that the choice doesn't depend on the device.
    """
    if library.serves(logits) and logits.dtype == torch.float32:
        weights, chosen = torch.ops.blazr.choose_experts.default(
            logits,
            correction_bias,
            spec.top_k,
            spec.scoring == "softmax",
            spec.normalise_top_k,
            spec.normalise_eps,
            spec.routed_scaling_factor,
            spec.num_expert_groups,
            spec.top_k_groups,
            spec.group_score == "top2",
        )
        return weights, chosen
    return choose_experts_reference(logits, spec, correction_bias)


def choose_experts_reference(
    logits: torch.Tensor, spec: MoESpec, correction_bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``choose_experts`` in PyTorch."""
    scores = logits.softmax(-1) if spec.scoring == "softmax" else logits.sigmoid()
    ranking = scores if correction_bias is None else scores + correction_bias
    if spec.num_expert_groups > 1:
        ranking = _within_best_groups(ranking, spec)
    chosen = _best(ranking, spec.top_k)
    weights = scores.gather(-1, chosen)
    if spec.normalise_top_k:
        weights = weights / (weights.sum(-1, keepdim=True) + spec.normalise_eps)
    if spec.routed_scaling_factor != 1.0:
        weights = weights * spec.routed_scaling_factor
    return weights, chosen


def _within_best_groups(ranking: torch.Tensor, spec: MoESpec) -> torch.Tensor:
    """Scores of experts outside the best groups become -inf."""
    grouped = ranking.view(ranking.shape[0], spec.num_expert_groups, -1)
    group_scores = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(-1, _best(group_scores, spec.top_k_groups), True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """(T, n) to the (T, count) indices of the highest, ties to the lowest index (which topk doesn't promise)."""
    return scores.sort(stable=True, dim=-1, descending=True).indices[:, :count]


class Router(Layer):
    """(T, h) to (T, E) logits in float32: rounding them would change which experts are chosen."""

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "correction_bias"})

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.num_experts, hidden_size), requires_grad=False)
        self.correction_bias = (
            nn.Parameter(torch.empty(spec.num_experts), requires_grad=False) if spec.correction_bias else None
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, without the correction bias."""
        return functional.linear(hidden.float(), self.weight.float())


class Experts(Layer):
    """The stacked matrices of all routed experts."""

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.gated = spec.gated
        count, width = spec.num_experts, spec.intermediate_size
        if spec.gated:
            self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * width, hidden_size), requires_grad=False)
        else:
            self.up_proj = nn.Parameter(torch.empty(count, width, hidden_size), requires_grad=False)
        self.down_proj = nn.Parameter(torch.empty(count, hidden_size, width), requires_grad=False)
        self.num_experts = count
        self.packed: dict[str, NativePacked | PlainQuantised | DeviceQuantised] = {}
        self._first = "gate_up_proj" if spec.gated else "up_proj"
        self._width = width
        self._activation = spec.activation
        self._kind = NATIVE_ACTIVATIONS[spec.activation]

    @property
    def waits_for_device(self) -> bool:
        """Whether ``forward`` counts on the host, so that no graph can capture it: no kernel takes its stacks."""
        return any(isinstance(one, PlainQuantised) for one in self.packed.values())

    def pack(self) -> bool:
        """Replace the stacks by the native layout, if there are kernels for them.

        Returns:
            Whether it was done.
        """
        stacks: dict[str, nn.Parameter] = {leaf: getattr(self, leaf) for leaf in (self._first, "down_proj")}
        missing = {leaf: stack for leaf, stack in stacks.items() if leaf not in self.packed}
        # Where only one of them was quantised, the other one stays as it is.
        is_quantised = any(not isinstance(one, NativePacked) or one.group for one in self.packed.values())
        if not missing or is_quantised or not all(map(library.serves, missing.values())):
            return False
        for leaf, stack in missing.items():
            self.packed[leaf] = pack_native(stack.detach(), native_form(stack.dtype))
            setattr(self, leaf, nn.Parameter(stack.new_empty(0), requires_grad=False))
        return True

    def packs_natively(self, leaf: str, dtype: torch.dtype) -> bool:
        """Whether ``pack`` gives this parameter the native layout."""
        return leaf in (self._first, "down_proj") and dtype in NATIVE_DTYPES

    def run(self, expert: int, hidden: torch.Tensor) -> torch.Tensor:
        """One expert over its rows (n, h) to (n, h)."""
        inner = activate(self._product(self._first, expert, hidden), self._activation, gated=self.gated)
        return self._product("down_proj", expert, inner)

    def _product(self, leaf: str, expert: int, hidden: torch.Tensor) -> torch.Tensor:
        packed = self.packed.get(leaf)
        if packed is None:
            return functional.linear(hidden, getattr(self, leaf)[expert])
        return packed.matrix(expert).linear(hidden, None)

    def quantise(self, leaf: str, weight: torch.Tensor, kind: Kind, dtype: torch.dtype) -> None:
        """Take the matrices of one of the stacks quantised; for the loader."""
        self.packed[leaf] = quantise(weight, kind, dtype=dtype)
        setattr(self, leaf, nn.Parameter(weight.new_empty(0, dtype=dtype), requires_grad=False))

    def accept(self, leaf: str, packed: NativePacked, dtype: torch.dtype) -> None:
        """Take one of the stacks as the loader has packed or quantised it, to compute in ``dtype``."""
        self.packed[leaf] = packed
        setattr(self, leaf, nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False))

    @property
    def packed_bytes(self) -> int:
        """Memory outside of the parameters."""
        return sum(packed.nbytes for packed in self.packed.values())

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each row's experts.

        Args:
            hidden: (T, h).
            weights: (T, k) float32.
            chosen: (T, k) int64.

        Returns:
            (T, h). The k parts of a row are added in the row's own order, whatever else is in the batch.
        """
        stacks = [self.packed.get(leaf, getattr(self, leaf)) for leaf in (self._first, "down_proj")]
        if use_triton(hidden) and not any(isinstance(stack, NativePacked | PlainQuantised) for stack in stacks):
            from inference.modelling.backends.triton.moe import run_experts

            return run_experts(hidden, weights, chosen, *stacks, gated=self.gated, activation=self._activation)
        first, second = self.packed.get(self._first), self.packed.get("down_proj")
        if isinstance(first, NativePacked) and isinstance(second, NativePacked):
            mixed: torch.Tensor = torch.ops.blazr.expert_mix.default(
                hidden,
                weights,
                chosen,
                first.data,
                first.scales,
                first.format,
                first.group,
                second.data,
                second.scales,
                second.format,
                second.group,
                self.num_experts,
                self._width,
                self.gated,
                self._kind,
            )
            return mixed
        return self.reference(hidden, weights, chosen)

    def reference(self, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """``forward`` expert by expert, with whatever form the matrices have."""
        rows, top_k = chosen.shape
        flat = chosen.flatten()
        order = flat.sort(stable=True, dim=0).indices
        counts = torch.bincount(flat, minlength=self.num_experts).tolist()
        gathered = hidden.index_select(0, order // top_k)
        parts = torch.empty_like(gathered)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                parts[start : start + count] = self.run(expert, gathered[start : start + count])
                start += count
        by_row = torch.empty_like(parts).index_copy_(0, order, parts).view(rows, top_k, -1)
        return torch.bmm(weights.unsqueeze(1), by_row.float()).squeeze(1).to(hidden.dtype)


class MixtureOfExperts(Layer):
    """Routed experts plus, where the spec says so, one expert that every row passes.

    Args:
        spec: Routing rules and sizes.
        hidden_size: h.
    """

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.router = Router(spec, hidden_size)
        self.experts = Experts(spec, hidden_size)
        self.shared_expert = None
        self.shared_expert_gate = None
        if spec.shared_intermediate_size:
            shared = MLPSpec(spec.shared_intermediate_size, spec.activation, spec.gated)
            self.shared_expert = MLP(shared, hidden_size)
            if spec.shared_gate:
                self.shared_expert_gate = Linear(hidden_size, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h)."""
        weights, chosen = choose_experts(self.router(hidden), self.spec, self.router.correction_bias)
        mixed: torch.Tensor = self.experts(hidden, weights, chosen)
        return mixed if self.shared_expert is None else mixed + self._shared(hidden)

    def _shared(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.shared_expert is not None
        shared = cast("torch.Tensor", self.shared_expert(hidden))
        if self.shared_expert_gate is not None:
            shared = self.shared_expert_gate(hidden).sigmoid() * shared
        return shared

    def reference(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same, row by row and expert by expert: the definition that the tests hold ``forward`` to."""
        spec, results = self.spec, []
        for row in hidden:
            logits = (self.router.weight.float() @ row.float()).tolist()
            scores = _scores(logits, spec)
            bias = [0.0] * len(scores) if self.router.correction_bias is None else self.router.correction_bias.tolist()
            ranking = [score + extra for score, extra in zip(scores, bias, strict=True)]
            chosen = _choose(ranking, spec)
            total = sum(scores[expert] for expert in chosen) + spec.normalise_eps if spec.normalise_top_k else 1.0
            result = torch.zeros_like(row, dtype=torch.float32)
            for expert in chosen:
                weight = scores[expert] / total * spec.routed_scaling_factor
                result += weight * self.experts.run(expert, row.unsqueeze(0))[0].float()
            if self.shared_expert is not None:
                result += self._shared(row.unsqueeze(0))[0].float()
            results.append(result.to(hidden.dtype))
        return torch.stack(results)


def _scores(logits: list[float], spec: MoESpec) -> list[float]:
    values = torch.tensor(logits, dtype=torch.float32)
    scores: list[float] = (values.softmax(0) if spec.scoring == "softmax" else values.sigmoid()).tolist()
    return scores


def _choose(ranking: list[float], spec: MoESpec) -> list[int]:
    """``choose_experts`` for one row, in plain Python; Python's sort keeps ties in order of number."""
    size = spec.num_experts // spec.num_expert_groups
    groups = [ranking[start : start + size] for start in range(0, spec.num_experts, size)]
    best = [max(group) if spec.group_score == "max" else sum(sorted(group)[-2:]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda group: -best[group])[: spec.top_k_groups]
    candidates = [expert for expert in range(spec.num_experts) if expert // size in kept]
    return sorted(candidates, key=lambda expert: -ranking[expert])[: spec.top_k]
