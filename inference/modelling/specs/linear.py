"""Specs of layers between attention and state space models: delta rules, linear attention, convolutions, Mamba-3.

Shape letters: h hidden, G key heads, H (value) heads, P width of a key head, V width of a value head, K convolution
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from inference.modelling.specs.parts import NormSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """Linear attention by the gated delta rule of Yang et al. 2024, https://arxiv.org/abs/2412.06464.

    Attributes:
        num_key_heads: G; each serves H / G value heads that follow each other.
        num_value_heads: H.
        key_head_dim: P.
        value_head_dim: V.
        gated_norm: Norm of a value head, with one weight (V,) for all heads, before the gate.
        beta_scale: Multiplies sigmoid(b): 2 lets the state's eigenvalues be negative (OLMo Hybrid).
        gate_activation: Function of the gate behind the norm.
    """

    kind: ClassVar[str] = "gated_delta"
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    gated_norm: NormSpec
    beta_scale: float = 1.0
    gate_activation: Literal["silu", "sigmoid"] = "silu"

    @property
    def key_width(self) -> int:
        """G · P."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """H · V."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Width of queries, keys and values together."""
        return 2 * self.key_width + self.value_width

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is queries, keys, values, gate; ``ba_proj`` is b, then a."""
        heads = self.num_value_heads
        return {
            "in_proj.weight": (self.conv_width + self.value_width, hidden_size),
            "ba_proj.weight": (2 * heads, hidden_size),
            "conv1d.weight": (self.conv_width, 1, self.conv_kernel),
            "dt_bias": (heads,),
            "A_log": (heads,),
            **prefixed("norm", self.gated_norm.parameter_shapes(self.value_head_dim)),
            "out_proj.weight": (hidden_size, self.value_width),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 raw rows of queries, keys and values, and the recurrent state."""
        return (
            StateTensor("conv_state", "sequence", (self.conv_width, self.conv_kernel - 1), "state"),
            StateTensor(
                "delta_state", "sequence", (self.num_value_heads, self.key_head_dim, self.value_head_dim), "state"
            ),
        )


@dataclass(frozen=True, slots=True)
class KimiDeltaSpec:
    """The delta rule with a decay for each key channel, of Kimi Linear 2025, https://arxiv.org/abs/2510.26692.

    Attributes:
        gated_norm: Norm of a head, with one weight (P,) for all heads, before the gate, which is a sigmoid.
        decay_rank: The decays are projected through so many values; None: in one step.
        gate_rank: The same of the output's gate.
        least_log_decay: The logarithm of the decay is this times a sigmoid (Ling 3); None: a softplus as in GatedDelta.
    """

    kind: ClassVar[str] = "kimi_delta"
    num_heads: int
    head_dim: int
    conv_kernel: int
    gated_norm: NormSpec
    decay_rank: int | None
    gate_rank: int | None
    least_log_decay: float | None = None

    @property
    def width(self) -> int:
        """H · P: of queries, of keys, of values, of decays and of the gate."""
        return self.num_heads * self.head_dim

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is queries, keys, values; ``low_rank_proj`` is b, then the narrow inputs of decays and gate."""
        width, heads = self.width, self.num_heads
        return {
            "in_proj.weight": (3 * width, hidden_size),
            "low_rank_proj.weight": (heads + (self.decay_rank or 0) + (self.gate_rank or 0), hidden_size),
            "decay_proj.weight": (width, self.decay_rank or hidden_size),
            "gate_proj.weight": (width, self.gate_rank or hidden_size),
            "conv1d.weight": (3 * width, 1, self.conv_kernel),
            "dt_bias": (width,),
            "A_log": (heads,),
            **prefixed("norm", self.gated_norm.parameter_shapes(self.head_dim)),
            "out_proj.weight": (hidden_size, width),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 raw rows of queries, keys and values, and the recurrent state."""
        return (
            StateTensor("conv_state", "sequence", (3 * self.width, self.conv_kernel - 1), "state"),
            StateTensor("delta_state", "sequence", (self.num_heads, self.head_dim, self.head_dim), "state"),
        )


@dataclass(frozen=True, slots=True)
class LightningSpec:
    """Linear attention with a fixed decay for each head (MiniMax), https://arxiv.org/abs/2501.08313, section 2.2.

    Attributes:
        decay_factor: Multiplies the slopes 2^(-8 h / H) of the heads h = 1 … H; it depends on the layer.
        norm: Over all heads at once, before the gate.
        activation: Of queries, keys and values.
    """

    kind: ClassVar[str] = "lightning"
    num_heads: int
    head_dim: int
    decay_factor: float
    norm: NormSpec
    activation: str = "silu"

    @property
    def width(self) -> int:
        """H · P: of queries, of keys, of values and of the gate."""
        return self.num_heads * self.head_dim

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is queries, keys, values."""
        return {
            "in_proj.weight": (3 * self.width, hidden_size),
            "gate_proj.weight": (self.width, hidden_size),
            **prefixed("norm", self.norm.parameter_shapes(self.width)),
            "out_proj.weight": (hidden_size, self.width),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """Σ e^(-s age) vᵀ k for each head."""
        return (StateTensor("linear_state", "sequence", (self.num_heads, self.head_dim, self.head_dim), "state"),)


@dataclass(frozen=True, slots=True)
class RGLRUSpec:
    """Griffin's linear recurrence of each channel behind a convolution, https://arxiv.org/abs/2402.19427, section 2.4.

    Attributes:
        width: W, channels.
        num_blocks: B, of the matrices that the gates are projected by.
        activation: Of what multiplies the recurrence's result.
    """

    kind: ClassVar[str] = "rg_lru"
    width: int
    num_blocks: int
    conv_kernel: int
    activation: str = "gelu_tanh"

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is what multiplies the result, then the recurrence's input; ``decay`` is Λ."""
        block = self.width // self.num_blocks
        return {
            "in_proj.weight": (2 * self.width, hidden_size),
            "in_proj.bias": (2 * self.width,),
            "conv1d.weight": (self.width, 1, self.conv_kernel),
            "conv1d.bias": (self.width,),
            "input_gate.weight": (self.num_blocks, block, block),
            "input_gate.bias": (self.num_blocks, block),
            "decay_gate.weight": (self.num_blocks, block, block),
            "decay_gate.bias": (self.num_blocks, block),
            "decay": (self.width,),
            "out_proj.weight": (hidden_size, self.width),
            "out_proj.bias": (hidden_size,),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 inputs of the convolution, and the recurrence's value."""
        return (
            StateTensor("conv_state", "sequence", (self.width, self.conv_kernel - 1), "state"),
            StateTensor("lru_state", "sequence", (self.width,), "state"),
        )


@dataclass(frozen=True, slots=True)
class MLSTMSpec:
    """xLSTM's layer with a matrix as its memory, https://arxiv.org/abs/2405.04517, section 2.3.

    Attributes:
        gate_cap: The gates' exponents are cap · tanh(x / cap).
        norm_eps: Of the layer norm of each head.
        eps: Added to what the output is divided by.
    """

    kind: ClassVar[str] = "mlstm"
    num_heads: int
    key_head_dim: int
    value_head_dim: int
    gate_cap: float
    norm_eps: float
    eps: float

    @property
    def key_width(self) -> int:
        """H · P."""
        return self.num_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """H · V."""
        return self.num_heads * self.value_head_dim

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is queries, keys, values, output gate; ``gates`` is the input gates, then the forget gates."""
        return {
            "in_proj.weight": (2 * self.key_width + 2 * self.value_width, hidden_size),
            "gates.weight": (2 * self.num_heads, hidden_size),
            "gates.bias": (2 * self.num_heads,),
            "norm.weight": (self.value_width,),
            "out_proj.weight": (hidden_size, self.value_width),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The memory, the sum of what was written to it, and the greatest exponent of a gate, which both are over."""
        heads, key, value = self.num_heads, self.key_head_dim, self.value_head_dim
        return (
            StateTensor("memory_state", "sequence", (heads, key, value), "state"),
            StateTensor("norm_state", "sequence", (heads, key), "float32"),
            StateTensor("max_state", "sequence", (heads,), "float32"),
        )


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """LFM2's convolution between two gates: out(C · conv(B · x)), https://arxiv.org/abs/2511.23404.

    Attributes:
        width: Channels, the hidden size.
        bias: Of the convolution and of both projections.
    """

    kind: ClassVar[str] = "short_conv"
    width: int
    conv_kernel: int
    bias: bool = False

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is B, C, x."""
        shapes: dict[str, Shape] = {
            "in_proj.weight": (3 * self.width, hidden_size),
            "conv1d.weight": (self.width, 1, self.conv_kernel),
            "out_proj.weight": (hidden_size, self.width),
        }
        if self.bias:
            shapes |= {"in_proj.bias": (3 * self.width,), "conv1d.bias": (self.width,), "out_proj.bias": (hidden_size,)}
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """The last K-1 rows of B · x."""
        return (StateTensor("conv_state", "sequence", (self.width, self.conv_kernel - 1), "state"),)


@dataclass(frozen=True, slots=True)
class Mamba3Spec:
    """oxidizr's Mamba-3: trapezoidal recurrence, optional complex rotation, convolution and MIMO.

    The state is as wide as P · max(R, 1) per head, R = ``mimo_rank``. Norms inside have eps 1e-6.
    """

    kind: ClassVar[str] = "mamba3"
    intermediate_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int | None
    complex_rope: bool
    mimo_rank: int
    gated_norm: NormSpec
    bc_norm: NormSpec
    dt_min: float = 0.001
    dt_max: float = 0.1
    a_clamp: tuple[float, float] | None = (1e-6, 1e6)
    a_override: Literal["-(1..H)"] | None = None

    @property
    def conv_width(self) -> int:
        """C = I + 2GS: width of x, B and C together."""
        return self.intermediate_size + 2 * self.num_groups * self.state_size

    @property
    def state_head_dim(self) -> int:
        """P · max(R, 1)."""
        return self.head_dim * max(self.mimo_rank, 1)

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``in_proj`` is gate, x, B, C, dt."""
        inner, heads, size = self.intermediate_size, self.num_heads, self.state_size
        rows = inner + self.conv_width + heads
        shapes: dict[str, Shape] = {
            "in_proj.weight": (rows, hidden_size),
            "in_proj.bias": (rows,),
            "lambda_proj.weight": (heads, hidden_size),
            "lambda_proj.bias": (heads,),
            "b_bias": (heads, size),
            "c_bias": (heads, size),
            "dt_bias": (heads,),
            "A_log": (heads,),
            "D": (heads,),
        }
        shapes |= prefixed("bc_norm", self.bc_norm.parameter_shapes(size))
        shapes |= prefixed("norm", self.gated_norm.parameter_shapes(inner))
        if self.complex_rope:
            shapes |= {"theta_proj.weight": (heads * size // 2, hidden_size), "theta_proj.bias": (heads * size // 2,)}
        if self.conv_kernel is not None:
            shapes |= {"conv1d.weight": (self.conv_width, 1, self.conv_kernel), "conv1d.bias": (self.conv_width,)}
        if self.mimo_rank > 0:
            wide, narrow = self.state_head_dim, self.head_dim
            shapes |= {
                "mimo_x_up.weight": (wide, narrow),
                "mimo_x_up.bias": (wide,),
                "mimo_x_down.weight": (narrow, wide),
                "mimo_x_down.bias": (narrow,),
            }
        return shapes | {"out_proj.weight": (hidden_size, inner), "out_proj.bias": (hidden_size,)}

    def state(self) -> tuple[StateTensor, ...]:
        """Recurrent state, previous expanded x and rotated B, running angle, convolution tail."""
        heads, wide, size = self.num_heads, self.state_head_dim, self.state_size
        found = [
            StateTensor("ssm_state", "sequence", (heads, wide, size), "state"),
            StateTensor("x_state", "sequence", (heads, wide), "state"),
            StateTensor("b_state", "sequence", (heads, size), "state"),
        ]
        if self.complex_rope:
            found.append(StateTensor("angle_state", "sequence", (heads, size // 2), "float32"))
        if self.conv_kernel is not None:
            found.append(StateTensor("conv_state", "sequence", (self.conv_width, self.conv_kernel - 1), "state"))
        return tuple(found)
