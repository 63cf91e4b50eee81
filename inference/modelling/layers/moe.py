"""Mixture of experts: the router, the experts grouped so that each runs once per step, the shared expert.

Shape letters: T rows, h hidden, E experts, k experts of a row, f width of an expert, G expert groups.

Sources: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; DeepSeek-V2,
https://arxiv.org/abs/2405.04434, section 2.2 (groups, shared experts); DeepSeek-V3,
https://arxiv.org/abs/2412.19437, section 2.1.2 (sigmoid scores, correction bias).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import MLP, activate, cuts_gate, gated_product, softcapped_gate
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.packed import Packed, PackedStack, empty_parameter
from inference.modelling.specs.layers import MLPSpec, MoESpec


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
    if spec.scoring == "sparse_mixer":
        return _sparse_mixer(logits, spec)
    scores = expert_scores(logits, spec)
    ranking = logits if spec.ranks_logits else scores
    if correction_bias is not None:
        ranking = ranking + correction_bias
    if spec.num_expert_groups > 1:
        ranking = _within_best_groups(ranking, spec)
    chosen = _best(ranking, spec.top_k)
    return expert_weights(scores, chosen, spec), chosen


def expert_scores(logits: torch.Tensor, spec: MoESpec) -> torch.Tensor:
    """(T, E) float32 of the router to the scores of all experts."""
    if spec.scoring == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if spec.scoring == "sigmoid" else functional.softplus(logits).sqrt()


def expert_weights(scores: torch.Tensor, chosen: torch.Tensor, spec: MoESpec) -> torch.Tensor:
    """Scores (T, E) of all experts to the weights (T, k) of the chosen ones (T, k)."""
    weights = scores.gather(-1, chosen)
    if spec.normalise_top_k:
        weights = weights / (weights.sum(-1, keepdim=True) + spec.normalise_eps)
    if spec.routed_scaling_factor != 1.0:
        weights = weights * spec.routed_scaling_factor
    return weights


def _sparse_mixer(logits: torch.Tensor, spec: MoESpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Choices one after the other, each with its softmax score among the experts near it.

    Source: https://arxiv.org/abs/2409.12136, and transformers' ``phimoe``.
    """
    left, weights, chosen = logits, [], []
    for _ in range(spec.top_k):
        index = _best(left, 1)
        best = left.gather(-1, index)
        is_far = (best - logits) / logits.abs().maximum(best) > spec.mixer_width
        weights.append(left.masked_fill(is_far, -torch.inf).softmax(-1).gather(-1, index))
        chosen.append(index)
        left = left.scatter(-1, index, -torch.inf)
    return torch.cat(weights, -1), torch.cat(chosen, -1)


def _within_best_groups(ranking: torch.Tensor, spec: MoESpec) -> torch.Tensor:
    """Scores of experts outside the best groups become ``group_floor``."""
    grouped = ranking.view(ranking.shape[0], spec.num_expert_groups, -1)
    group_scores = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(-1, _best(group_scores, spec.top_k_groups), True)
    return grouped.masked_fill(~kept.unsqueeze(-1), spec.group_floor).flatten(1)


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """(T, n) to the (T, count) indices of the highest, ties to the lowest index (which topk doesn't promise)."""
    return scores.sort(stable=True, dim=-1, descending=True).indices[:, :count]


class Router(Layer):
    """(T, h) to (T, E) logits in float32: rounding them would change which experts are chosen."""

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias", "correction_bias", "expert_scale"})

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        count = spec.num_choices
        self.weight = nn.Parameter(torch.empty(count, hidden_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(count), requires_grad=False) if spec.router_bias else None
        self.correction_bias = nn.Parameter(torch.empty(count), requires_grad=False) if spec.correction_bias else None
        self.norm = None if spec.router_norm is None else Norm(spec.router_norm, hidden_size)
        self.expert_scale = (
            nn.Parameter(torch.empty(spec.num_experts), requires_grad=False) if spec.expert_scale else None
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, without the correction bias."""
        return functional.linear(self.entering(hidden), self.weight.float(), self.bias)

    def entering(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to what the router's matrix multiplies, in float32."""
        factor = self.spec.router_multiplier
        if self.norm is not None:
            hidden, factor = self.norm(hidden) * factor, 1.0
        return hidden.float() if factor == 1.0 else hidden.float() * factor

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (T, k) and expert numbers (T, k) of each row; see ``choose_experts``."""
        return choose_experts(logits, self.spec, self.correction_bias)


class Experts(Layer):
    """The stacked matrices of all routed experts."""

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        count, width = spec.num_experts, spec.intermediate_size
        if spec.gated:
            self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * width, hidden_size), requires_grad=False)
        else:
            self.up_proj = nn.Parameter(torch.empty(count, width, hidden_size), requires_grad=False)
        self.down_proj = nn.Parameter(torch.empty(count, hidden_size, width), requires_grad=False)
        if spec.expert_bias:
            rows = 2 * width if spec.gated else width
            first = "gate_up_proj_bias" if spec.gated else "up_proj_bias"
            setattr(self, first, nn.Parameter(torch.empty(count, rows), requires_grad=False))
            self.down_proj_bias = nn.Parameter(torch.empty(count, hidden_size), requires_grad=False)
        self.output_norm = None if spec.expert_norm is None else Norm(spec.expert_norm, hidden_size)
        self.packed: dict[str, PackedStack] = {}
        self.stacks = ("gate_up_proj" if spec.gated else "up_proj", "down_proj")

    def plain_matrices(self) -> Mapping[str, torch.Tensor]:
        """Stacks that can be packed; where only one of them was quantised, the other one stays as it is."""
        if any(one.is_quantised for one in self.packed.values()):
            return {}
        return {leaf: getattr(self, leaf) for leaf in self.stacks if leaf not in self.packed}

    def accept(self, leaf: str, packed: Packed, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Replace one of the stacks by its packed form, to compute in ``dtype``."""
        self.packed[leaf] = cast("PackedStack", packed)
        setattr(self, leaf, empty_parameter(dtype, device))

    @property
    def packed_bytes(self) -> int:
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
        return self.mix(hidden, weights, chosen)

    def mix(self, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The weighted sums, expert by expert; arguments and result as of ``forward``."""
        return self.weighted(self.each(hidden, chosen, self.run), weights)

    def weighted(self, by_row: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What each chosen expert gave (T, k, h) to the weighted sums (T, h), in the dtype of ``by_row``."""
        normed = by_row if self.output_norm is None else self.output_norm(by_row)
        return torch.bmm(weights.unsqueeze(1), normed.float()).squeeze(1).to(by_row.dtype)

    def each(
        self, hidden: torch.Tensor, chosen: torch.Tensor, run: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """What each chosen expert makes of a row, (T, k, n); ``run``: one expert over rows (m, K) to (m, n)."""
        rows, top_k = chosen.shape
        flat = chosen.flatten()
        order = flat.sort(stable=True, dim=0).indices
        counts = torch.bincount(flat, minlength=self.spec.num_experts).tolist()
        gathered = hidden.index_select(0, order // top_k)
        parts = [run(expert, part) for expert, part in enumerate(torch.split(gathered, counts)) if counts[expert]]
        joined = torch.cat(parts)
        return torch.empty_like(joined).index_copy_(0, order, joined).view(rows, top_k, -1)

    def run(self, expert: int, hidden: torch.Tensor) -> torch.Tensor:
        """One expert over its rows (n, h) to (n, h)."""
        first, second = self.stacks
        return self.product(second, expert, self.activate(self.product(first, expert, hidden)))

    def activate(self, values: torch.Tensor) -> torch.Tensor:
        """(n, 2f) gate and up, or (n, f), to (n, f)."""
        spec = self.spec
        if not spec.gated:
            return activate(values, spec.activation, gated=False)
        gate, up = (values[..., ::2], values[..., 1::2]) if spec.is_interleaved else values.chunk(2, -1)
        if spec.softcaps is not None:
            return softcapped_gate(gate, up, *spec.softcaps)
        return gated_product(gate, up, spec)

    @property
    def is_plain(self) -> bool:
        """Whether an expert is down(act(gate x) · up x), gate before up, without biases and norm."""
        spec = self.spec
        has_more = spec.expert_bias or spec.is_interleaved or spec.expert_norm is not None
        return not has_more and spec.softcaps is None and not cuts_gate(spec)

    def product(self, leaf: str, expert: int, hidden: torch.Tensor) -> torch.Tensor:
        """One expert's matrix of the stack ``leaf`` times rows (n, K)."""
        packed = self.packed.get(leaf)
        bias = getattr(self, f"{leaf}_bias")[expert] if self.spec.expert_bias else None
        if packed is None:
            return functional.linear(hidden, getattr(self, leaf)[expert], bias)
        return packed.matrix(expert).linear(hidden, bias)


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
        self.experts = Experts(spec, spec.latent_size or hidden_size)
        if spec.latent_size:
            self.latent_down_proj = Linear(hidden_size, spec.latent_size)
            self.latent_up_proj = Linear(spec.latent_size, hidden_size)
        self.latent_norm = None if spec.latent_norm is None else Norm(spec.latent_norm, spec.latent_size)
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False) if spec.output_bias else None
        self.shared_expert = None
        self.shared_expert_gate = None
        if spec.shared_intermediate_size:
            shared = MLPSpec(
                spec.shared_intermediate_size,
                spec.activation,
                spec.gated,
                output_multiplier=spec.shared_multiplier,
                gate_clamp=spec.gate_clamp,
                activation_limit=spec.activation_limit if spec.limits_shared else None,
                post_activation_limit=spec.shared_post_limit,
            )
            self.shared_expert = MLP(shared, hidden_size)
            if spec.shared_gate:
                self.shared_expert_gate = Linear(hidden_size, 1)
        self.has_branch_norms = spec.branch_norm is not None
        if spec.branch_norm is not None:
            self.shared_norm, self.shared_post_norm = (Norm(spec.branch_norm, hidden_size) for _ in range(2))
            self.experts_norm, self.experts_post_norm = (Norm(spec.branch_norm, hidden_size) for _ in range(2))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h)."""
        weights, chosen = self.router.choose(self.router(hidden))
        if self.router.expert_scale is not None:
            weights = weights * self.router.expert_scale[chosen]
        mixed: torch.Tensor
        if self.spec.num_identity_experts:
            # These count as the first expert with weight 0, so that the experts' kernels know nothing of them.
            is_identity = chosen >= self.spec.num_experts
            kept = (weights * is_identity).sum(-1, keepdim=True).to(hidden.dtype)
            weights, chosen = weights.masked_fill(is_identity, 0.0), chosen.masked_fill(is_identity, 0)
            mixed = self.experts(hidden, weights, chosen) + kept * hidden
            return mixed if self.shared_expert is None else mixed + self._shared(hidden)
        if self.spec.scales_input:
            scaled = (hidden.unsqueeze(1) * weights.unsqueeze(2).to(hidden.dtype)).flatten(0, 1)
            parts = self.experts(scaled, torch.ones_like(weights).view(-1, 1), chosen.reshape(-1, 1))
            mixed = parts.view(*weights.shape, -1).sum(1)
            return mixed if self.shared_expert is None else mixed + self._shared(hidden)
        if self.has_branch_norms:
            mixed = self.experts_post_norm(self.experts(self.experts_norm(hidden), weights, chosen))
            shared: torch.Tensor = self.shared_post_norm(self._shared(self.shared_norm(hidden)))
            return mixed + shared
        if self.spec.latent_size:
            entering = self.latent_down_proj(hidden)
            if self.latent_norm is not None:
                entering = self.latent_norm(entering)
            mixed = self.latent_up_proj(self.experts(entering, weights, chosen))
        else:
            mixed = self.experts(hidden, weights, chosen)
        if self.bias is not None:
            mixed = mixed + self.bias
        return mixed if self.shared_expert is None else mixed + self._shared(hidden)

    def _shared(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.shared_expert is not None
        shared = cast("torch.Tensor", self.shared_expert(hidden))
        if self.shared_expert_gate is not None:
            shared = self.shared_expert_gate(hidden).sigmoid() * shared
        return shared
