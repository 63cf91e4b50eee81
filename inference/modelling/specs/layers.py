"""Specs of layers and their parts: sizes, parameter shapes and states of each kind, without weights.

Shape letters: h hidden, V vocabulary, I inner width of a Mamba layer, H heads, P head width,
S state size, G groups, K convolution kernel, E experts, f intermediate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from inference.modelling.specs.attention_parts import DifferenceSpec, HeadExpertsSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.indexer import BlockIndexerSpec, PooledIndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.parallel import ParallelSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, Shape, StateTensor, prefixed
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec

# --- token mixers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention with a paged KV cache.

    Attributes:
        scale: Factor of q·k before the softmax.
        qk_norm: Norm of q and k before the rotation, or after it (``qk_norm_after_rope``); over one head
            (``qk_norm_per_head``) or the whole width; over heads with one weight, or one for each head
            (``qk_norm_of_each_head``).
        qkv_clip: q, k and v stay within ± this (OLMo); None: free.
        sliding_window: A query sees this many positions, its own included; None: all.
        chunk_size: Positions lie in chunks of this many, and a query sees only its own chunk's (Llama 4); None: all.
        softcap: cap · tanh(score / cap) before the softmax (Gemma 2); None: off.
        rope: None: no positions (Jamba, Nemotron-H).
        has_sinks: Each query head has a learned score, of a position without a value, beside those of the positions
            that it sees (gpt-oss).
        query_growth: (β, L): queries at position p are multiplied by 1 + β · ln(1 + floor((p + s) / L)) (Ministral 3).
        query_growth_start: s (Llama 4: 1).
        output_gate: The output is multiplied by a function of a projection of the input, before ``o_proj``.
        gate_activation: That function.
        gate_per_head: The projection has one value for each head, not one for each of its values (Laguna).
        v_head_dim: Width of a head's values; None: ``head_dim`` (MiMo-V2-Flash).
        output_multiplier: Multiplies the values that the heads give.
        block_indexer: Chooses the blocks of keys that each query sees, without a window; None: all.
        v_norm: Norm of each head's values; it has no weights (Gemma 4).
        heads_norm: Norm of what each head gives, before the gate; it has no weights (Muse Spark).
        output_norm: Norm of all that the heads give, before ``o_proj`` (BitNet).
        difference: Half of the heads is subtracted from the others; None: it isn't.
        head_experts: Each row has the heads of the experts that it is routed to; None: all heads.
        kv_source: Number of the earlier layer whose cached keys and values the queries read; the layer computes and
            caches none of its own (Gemma 3n); None: its own.
        slopes: Each query head's score falls by so much for each position between query and key (ALiBi, MPT); None:
            it doesn't.
    """

    kind: ClassVar[str] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: NormSpec | None = None
    qk_norm_per_head: bool = True
    qk_norm_of_each_head: bool = False
    qk_norm_after_rope: bool = False
    qkv_clip: float | None = None
    sliding_window: int | None = None
    softcap: float | None = None
    output_gate: bool = False
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    gate_per_head: bool = False
    has_sinks: bool = False
    query_growth: tuple[float, int] | None = None
    query_growth_start: int = 0
    slopes: tuple[float, ...] | None = None
    v_norm: NormSpec | None = None
    kv_source: int | None = None
    chunk_size: int | None = None
    v_head_dim: int | None = None
    output_multiplier: float = 1.0
    block_indexer: BlockIndexerSpec | PooledIndexerSpec | None = None
    heads_norm: NormSpec | None = None
    output_norm: NormSpec | None = None
    difference: DifferenceSpec | None = None
    head_experts: HeadExpertsSpec | None = None

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def qkv_rows(self) -> int:
        """Rows of ``qkv_proj``."""
        kv_rows = 0 if self.kv_source is not None else self.num_kv_heads * (self.head_dim + self.value_dim)
        return kv_rows if self.head_experts is not None else self.num_heads * self.head_dim + kv_rows

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``qkv_proj`` is q, k and v stacked in this order, those of them that the layer has."""
        width = self.num_heads * self.value_dim
        shapes: dict[str, Shape] = {"qkv_proj.weight": (self.qkv_rows, hidden_size)}
        if self.qkv_bias:
            shapes["qkv_proj.bias"] = (self.qkv_rows,)
        if self.head_experts is None:
            shapes["o_proj.weight"] = (hidden_size, width)
        else:
            own = self.head_experts.parameter_shapes(hidden_size, self.num_kv_heads * self.head_dim)
            shapes |= prefixed("head_experts", own)
        if self.o_bias:
            shapes["o_proj.bias"] = (hidden_size,)
        if self.output_norm is not None:
            shapes |= prefixed("output_norm", self.output_norm.parameter_shapes(width))
        if self.difference is not None:
            shapes["lambdas"] = (4, self.head_dim)
        if self.output_gate:
            shapes["gate_proj.weight"] = (self.num_heads if self.gate_per_head else width, hidden_size)
        if self.has_sinks:
            shapes["sinks"] = (self.num_heads,)
        if self.qk_norm is not None:
            for name, heads in self.normed_heads():
                shapes |= prefixed(name, self.qk_norm.parameter_shapes(*self.qk_norm_shape(heads)))
        if self.block_indexer is not None:
            shapes |= prefixed("indexer", self.block_indexer.parameter_shapes(hidden_size, self.num_kv_heads))
        return shapes

    def normed_heads(self) -> tuple[tuple[str, int], ...]:
        """Name and number of heads of each norm of ``qk_norm``."""
        both = (("q_norm", self.num_heads), ("k_norm", self.num_kv_heads))
        return both if self.kv_source is None else both[:1]

    def qk_norm_shape(self, heads: int) -> Shape:
        """Shape of the weights of the norm over so many heads."""
        if not self.qk_norm_per_head:
            return (heads * self.head_dim,)
        return (heads, self.head_dim) if self.qk_norm_of_each_head else (self.head_dim,)

    def state(self) -> tuple[StateTensor, ...]:
        """Keys (already rotated) and values of each token; none where another layer's are read."""
        if self.kv_source is not None:
            return ()
        heads, index = self.num_kv_heads, self.block_indexer
        keys = StateTensor("k", "token", (heads, self.head_dim))
        values = StateTensor("v", "token", (heads, self.value_dim))
        return (keys, values, *([] if index is None else [StateTensor("index_k", "token", (index.head_dim,))]))


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """Selective state space layer of Gu and Dao 2023, https://arxiv.org/abs/2312.00752.

    Attributes:
        inner_norm: Norm of dt, B and C after ``x_proj`` (Jamba with weights, Falcon-Mamba without).
        positive_a: A = +exp(-a_log), the oxidizr trainer's form, instead of -exp(A_log).
        state_clamp: The state stays within ± this (oxidizr: 30); None: free.
        num_heads: H; each has I / H channels, and dt, B and C of its own, projected from them (Zamba).
    """

    kind: ClassVar[str] = "mamba1"
    intermediate_size: int
    state_size: int
    conv_kernel: int
    dt_rank: int
    proj_bias: bool = False
    conv_bias: bool = True
    activation: str = "silu"
    inner_norm: NormSpec | None = None
    positive_a: bool = False
    state_clamp: float | None = None
    num_heads: int = 1

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is x then gate; ``x_proj`` is dt, B, C, where there are heads for each of them."""
        inner, size = self.intermediate_size, self.state_size
        shapes: dict[str, Shape] = {"in_proj.weight": (2 * inner, hidden_size)}
        if self.proj_bias:
            shapes["in_proj.bias"] = (2 * inner,)
        shapes["conv1d.weight"] = (inner, 1, self.conv_kernel)
        if self.conv_bias:
            shapes["conv1d.bias"] = (inner,)
        shapes |= {
            "x_proj.weight": self._x_proj_shape(),
            "dt_proj.weight": (inner, self.dt_rank),
            "dt_proj.bias": (inner,),
            "A_log": (inner, size),
            "D": (inner,),
            "out_proj.weight": (hidden_size, inner),
        }
        if self.proj_bias:
            shapes["out_proj.bias"] = (hidden_size,)
        if self.inner_norm is not None:
            for name, width in (("dt_norm", self.dt_rank), ("b_norm", size), ("c_norm", size)):
                shapes |= prefixed(name, self.inner_norm.parameter_shapes(width))
        return shapes

    def _x_proj_shape(self) -> Shape:
        rows = self.dt_rank + 2 * self.state_size
        if self.num_heads == 1:
            return (rows, self.intermediate_size)
        return (self.num_heads, rows, self.intermediate_size // self.num_heads)

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 inputs of the convolution, and the recurrent state."""
        return (
            StateTensor("conv_state", "sequence", (self.intermediate_size, self.conv_kernel - 1), "state"),
            StateTensor("ssm_state", "sequence", (self.intermediate_size, self.state_size), "state"),
        )


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """State space dual layer of Dao and Gu 2024, https://arxiv.org/abs/2405.21060.

    Attributes:
        dt_min, dt_max: dt is clamped to this range after softplus.
        a_clamp: exp(A_log) is clamped to this range (oxidizr); None: not.
        a_override: ``"-(1..H)"`` replaces the stored A_log by A = -(1, 2, …, H), an explicit choice of
            the operator for checkpoints of a trainer that didn't store what it used; None: as stored.
        norm_group_size: The gated norm runs over groups of this many values (I: all at once).
        norm_before_gate: norm(y) · silu(gate) instead of norm(y · silu(gate)).
        gated_norm: None: y · silu(gate) without a norm.
        multipliers: Factors of gate, x, B, C and dt after ``in_proj`` (Falcon-H1); None: 1.
    """

    kind: ClassVar[str] = "mamba2"
    intermediate_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    norm_group_size: int
    gated_norm: NormSpec | None
    norm_before_gate: bool = False
    dt_min: float = 0.0
    dt_max: float = math.inf
    proj_bias: bool = False
    conv_bias: bool = True
    activation: str = "silu"
    a_clamp: tuple[float, float] | None = None
    a_override: Literal["-(1..H)"] | None = None
    multipliers: tuple[float, float, float, float, float] | None = None

    @property
    def conv_width(self) -> int:
        """C = I + 2GS: width of x, B and C together."""
        return self.intermediate_size + 2 * self.num_groups * self.state_size

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is gate, x, B, C, dt."""
        inner, heads = self.intermediate_size, self.num_heads
        rows = inner + self.conv_width + heads
        shapes: dict[str, Shape] = {"in_proj.weight": (rows, hidden_size)}
        if self.proj_bias:
            shapes["in_proj.bias"] = (rows,)
        shapes["conv1d.weight"] = (self.conv_width, 1, self.conv_kernel)
        if self.conv_bias:
            shapes["conv1d.bias"] = (self.conv_width,)
        shapes |= {"dt_bias": (heads,), "A_log": (heads,), "D": (heads,)}
        if self.gated_norm is not None:
            shapes |= prefixed("norm", self.gated_norm.parameter_shapes(inner))
        shapes["out_proj.weight"] = (hidden_size, inner)
        if self.proj_bias:
            shapes["out_proj.bias"] = (hidden_size,)
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 raw rows of x, B, C, and the recurrent state."""
        return (
            StateTensor("conv_state", "sequence", (self.conv_width, self.conv_kernel - 1), "state"),
            StateTensor("ssm_state", "sequence", (self.num_heads, self.head_dim, self.state_size), "state"),
        )


TokenMixerSpec = (
    AttentionSpec
    | CompressedAttentionSpec
    | MLASpec
    | Mamba1Spec
    | Mamba2Spec
    | Mamba3Spec
    | GatedDeltaSpec
    | KimiDeltaSpec
    | LightningSpec
    | RGLRUSpec
    | MLSTMSpec
    | ShortConvSpec
    | TimeMixSpec
    | ChannelMixSpec
    | ParallelSpec
)


# --- channel mixers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """r · down(act(f · gate x) · up x), or r · down(act(up x)) when not ``gated``.

    Attributes:
        activation: One of ``ACTIVATIONS``, or, without a gate, ``xielu``, which has learned numbers.
        gate_multiplier: f.
        output_multiplier: r.
        gate_sparsity: So much of a row's gates becomes 0, if they are spread normally: what is above the cut remains,
            less the cut (Gemma 3n); 0: all remain.
        gate_clamp, activation_limit, post_activation_limit: As in ``MoESpec``.
        inner_norm: Norm of the activations, before ``down`` (BitNet).
        has_output_scale: A learned number multiplies the result (Inkling).
    """

    kind: ClassVar[str] = "mlp"
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    output_multiplier: float = 1.0
    gate_sparsity: float = 0.0
    gate_clamp: tuple[float, float] | None = None
    post_activation_limit: float | None = None
    inner_norm: NormSpec | None = None
    has_output_scale: bool = False
    activation_limit: float | None = None

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``gate_up_proj`` is gate then up."""
        name, rows = ("gate_up_proj", 2 * self.intermediate_size) if self.gated else ("up_proj", self.intermediate_size)
        shapes: dict[str, Shape] = {f"{name}.weight": (rows, hidden_size)}
        if self.bias:
            shapes[f"{name}.bias"] = (rows,)
        shapes["down_proj.weight"] = (hidden_size, self.intermediate_size)
        if self.bias:
            shapes["down_proj.bias"] = (hidden_size,)
        if self.activation == "xielu":
            shapes["alphas"] = (2,)
        if self.inner_norm is not None:
            shapes |= prefixed("inner_norm", self.inner_norm.parameter_shapes(self.intermediate_size))
        if self.has_output_scale:
            shapes["output_scale"] = (1,)
        return shapes


@dataclass(frozen=True, slots=True)
class MoESpec:
    """Routed experts, and optionally shared ones.

    Attributes:
        scoring: Scores over all experts from the router's logits; ``sparse_mixer``: each choice is scored among those
            experts whose logits are within ``mixer_width`` of the best that is left, as a share of it (Phi-3.5-MoE).
        ranks_logits: Experts are chosen by their logits, to which the correction bias is added, not by their scores.
        normalise_top_k: The chosen scores are divided by their sum (softmax over the chosen logits is
            ``softmax`` with this on).
        routed_scaling_factor: Multiplies the routed experts' weights.
        num_expert_groups, top_k_groups: Group-limited routing of DeepSeek; 1, 1: off.
        group_score: A group's score: its best expert (V2) or the sum of its two best (V3).
        group_floor: The score of the experts of the other groups, which one of a negative score may fall behind
            (A.X-K2: 0).
        correction_bias: A learned bias added to the scores for choosing only (V3).
        normalise_eps: Added to the sum when normalising.
        shared_intermediate_size: Width of the always-on expert; 0: none.
        router_bias: The router's logits have a bias.
        expert_bias: The experts' matrices have biases.
        is_interleaved: Rows of gate and up take turns in ``experts.gate_up_proj``, instead of all of gate first.
        gate_clamp: (α, limit): the gate is cut from above at the limit and up on both sides, and the result is
            gate · sigmoid(α · gate) · (up + 1) instead of the activation's (gpt-oss); None: off.
        shared_multiplier: Multiplies what the shared expert gives.
        shared_gate: The shared expert is multiplied by sigmoid of a learned projection (Qwen2-MoE).
        branch_norm: Norms before and behind the shared expert, and before and behind the routed ones; the router reads
            what comes in (Gemma 4); None: all read the same.
        router_norm, router_multiplier: The router reads norm(x) · multiplier, or x · multiplier without the norm.
        num_identity_experts: The router chooses among so many more, which give back what they read (LongCat-Flash).
        scales_input: The weights multiply the experts' inputs, not their outputs (Llama 4).
        expert_scale: Each expert's weight is multiplied by a learned number of it.
        activation_limit: The gate is cut from above and up on both sides at this, before the activation (HY 4); None:
            they aren't.
        limits_shared: ``activation_limit`` holds for the shared expert, too (DeepSeek V4).
        post_activation_limit: The same cuts, but of the gate behind the activation (Step 3.7); None: they aren't.
        shared_post_limit: ``post_activation_limit`` of the shared expert.
        softcaps: (a, b): the result is cap(gate, a) · sigmoid(gate) · cap(up, b), with cap(x, a) = a · tanh(x / a),
            instead of the activation's (Inkling 2); None: off.
        output_bias: A bias is added to the experts' sum (JetMoE).
        latent_size: Width of what the routed experts read and give, between two projections; 0: they read what the
            shared expert reads (Nemotron 3 Super).
        latent_norm: Norm of what they read there (Muse Spark).
        expert_norm: Norm of what each expert gives, before it is weighted (Muse Spark).
    """

    kind: ClassVar[str] = "moe"
    num_experts: int
    top_k: int
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    scoring: Literal["softmax", "sigmoid", "sparse_mixer", "sqrt_softplus"] = "softmax"
    mixer_width: float = 0.0
    ranks_logits: bool = False
    normalise_top_k: bool = True
    normalise_eps: float = 0.0
    routed_scaling_factor: float = 1.0
    num_expert_groups: int = 1
    top_k_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    group_floor: float = -math.inf
    correction_bias: bool = False
    shared_intermediate_size: int = 0
    shared_multiplier: float = 1.0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    is_interleaved: bool = False
    gate_clamp: tuple[float, float] | None = None
    branch_norm: NormSpec | None = None
    router_norm: NormSpec | None = None
    router_multiplier: float = 1.0
    expert_scale: bool = False
    scales_input: bool = False
    num_identity_experts: int = 0
    output_bias: bool = False
    activation_limit: float | None = None
    post_activation_limit: float | None = None
    shared_post_limit: float | None = None
    softcaps: tuple[float, float] | None = None
    latent_size: int = 0
    limits_shared: bool = False
    latent_norm: NormSpec | None = None
    expert_norm: NormSpec | None = None

    @property
    def num_choices(self) -> int:
        """What the router chooses among."""
        return self.num_experts + self.num_identity_experts

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Experts are stacked: ``experts.gate_up_proj`` (E, 2f, h), ``experts.down_proj`` (E, h, f).

        With ``latent_size`` their h is that, ``latent_down_proj`` and ``latent_up_proj`` around them.
        """
        count, inner, outer = self.num_experts, self.intermediate_size, self.latent_size or hidden_size
        shapes: dict[str, Shape] = {"router.weight": (self.num_choices, hidden_size)}
        if self.router_bias:
            shapes["router.bias"] = (self.num_choices,)
        if self.correction_bias:
            shapes["router.correction_bias"] = (self.num_choices,)
        if self.router_norm is not None:
            shapes |= prefixed("router.norm", self.router_norm.parameter_shapes(hidden_size))
        if self.expert_scale:
            shapes["router.expert_scale"] = (count,)
        if self.branch_norm is not None:
            for name in ("shared_norm", "shared_post_norm", "experts_norm", "experts_post_norm"):
                shapes |= prefixed(name, self.branch_norm.parameter_shapes(hidden_size))
        first, rows = ("gate_up_proj", 2 * inner) if self.gated else ("up_proj", inner)
        shapes[f"experts.{first}"] = (count, rows, outer)
        shapes["experts.down_proj"] = (count, outer, inner)
        if self.expert_bias:
            shapes |= {f"experts.{first}_bias": (count, rows), "experts.down_proj_bias": (count, outer)}
        if self.latent_size:
            shapes["latent_down_proj.weight"] = (self.latent_size, hidden_size)
            shapes["latent_up_proj.weight"] = (hidden_size, self.latent_size)
        for name, norm in (("latent_norm", self.latent_norm), ("experts.output_norm", self.expert_norm)):
            if norm is not None:
                shapes |= prefixed(name, norm.parameter_shapes(outer))
        if self.shared_intermediate_size:
            shared = MLPSpec(self.shared_intermediate_size, self.activation, self.gated)
            shapes |= prefixed("shared_expert", shared.parameter_shapes(hidden_size))
        if self.shared_gate:
            shapes["shared_expert_gate.weight"] = (1, hidden_size)
        if self.output_bias:
            shapes["bias"] = (hidden_size,)
        return shapes


ChannelMixerSpec = MLPSpec | MoESpec
