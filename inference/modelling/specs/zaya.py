"""Specs of ZAYA's mixers: attention with convolutions over queries and keys, experts whose router remembers.

Shape letters: h hidden, H query heads, V key/value heads, P head width, E experts, r width of the router.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.layers import AttentionSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class ConvolvedAttentionSpec(AttentionSpec):
    """Attention whose queries and keys pass two convolutions (CCA, https://arxiv.org/abs/2510.04476).

    With q₀ and k₀ the projections, c = heads(channels([q₀ | k₀])), where the first convolution is of each channel and
    the second of each head, q̄ = (q₀ + k₀ of its group) / 2 and k̄ = the mean of q̄ over the group,

        q = unit(c_q + q̄),  k = unit(c_k + k̄) · scale of its head,  unit(x) = √P · x / ‖x‖.

    The second half of the values' projection is the token before's.

    Attributes:
        channel_kernel, head_kernel: Taps of the convolutions.
    """

    kind: ClassVar[str] = "convolved_attention"
    channel_kernel: int = 2
    head_kernel: int = 2

    @property
    def conv_width(self) -> int:
        """Channels of queries and keys."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim

    @property
    def delayed_width(self) -> int:
        """Values that are the token before's."""
        return self.num_kv_heads * self.head_dim // 2

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Those of attention; ``head_conv`` has the taps last, as the files do."""
        width = self.conv_width
        return {
            **AttentionSpec.parameter_shapes(self, hidden_size),
            "conv1d.weight": (width, 1, self.channel_kernel),
            "conv1d.bias": (width,),
            "head_conv.weight": (width, self.head_dim, self.head_kernel),
            "head_conv.bias": (width,),
            "key_scale": (self.num_kv_heads,),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """Keys and values of each token; the last inputs of both convolutions, and the last delayed values."""
        return (
            *AttentionSpec.state(self),
            StateTensor("conv_state", "sequence", (self.conv_width, self.channel_kernel - 1), "state"),
            StateTensor("head_conv_state", "sequence", (self.head_kernel - 1, self.conv_width), "state"),
            StateTensor("delayed_state", "sequence", (self.delayed_width,), "state"),
        )


@dataclass(frozen=True, slots=True)
class MemoryMoESpec(MoESpec):
    """Experts whose router reads what the routers of the layers before it have read.

    With m the memory that the layer before leaves,

        r = down(x) + memory_scale · m,  logits = out(gelu(fc2(gelu(fc1(norm(r)))))),

    and r is the memory of the next layer. The last choice is no expert, and gives nothing.

    Attributes:
        router_width: r.
        memory_norm: The router's.
        reads_memory: The first layer has none to read.
    """

    kind: ClassVar[str] = "memory_moe"
    router_width: int = 0
    memory_norm: NormSpec = NormSpec()  # noqa: RUF009 frozen
    reads_memory: bool = True

    @property
    def num_choices(self) -> int:
        """What the router chooses among: the experts, and none of them."""
        return self.num_experts + 1

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """The experts are stacked as in ``MoESpec``."""
        width, choices = self.router_width, self.num_choices
        shapes: dict[str, Shape] = {
            "router.down.weight": (width, hidden_size),
            "router.down.bias": (width,),
            **prefixed("router.norm", self.memory_norm.parameter_shapes(width)),
            **{f"router.{name}.weight": (width, width) for name in ("fc1", "fc2")},
            **{f"router.{name}.bias": (width,) for name in ("fc1", "fc2")},
            "router.out.weight": (choices, width),
            "router.correction_bias": (choices,),
        }
        if self.reads_memory:
            shapes["router.memory_scale"] = (width,)
        experts = MoESpec.parameter_shapes(self, hidden_size)
        return shapes | {name: shape for name, shape in experts.items() if not name.startswith("router.")}
