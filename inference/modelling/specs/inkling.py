"""Specs of Inkling's parts: attention with a relative position bias, scored shared experts, added convolutions.

Shape letters: h hidden, H query heads, V key/value heads, P head width, r learned profiles of the bias, D distances
that they cover, E experts, S shared experts, f intermediate, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.layers import AttentionSpec, MoESpec
from inference.modelling.specs.parts import Shape, StateTensor


@dataclass(frozen=True, slots=True)
class RelativeAttentionSpec(AttentionSpec):
    """Attention without rotation, with a relative position bias that each query mixes from learned profiles.

    A profile is a bias for each distance of a query from a key. With C the r profiles, and ρ the r weights that a query
    gives them, a projection of the layer's input, the score of a query at position p and a key at position j is

        τ · (scale · q · k + (ρ C)[p - j]),  τ = 1 + α · ln(max(1, (p + 1) / L)),

    and from a distance of D on the bias is 0. Keys and values pass a short convolution before all else, which is
    added to them.

    Attributes:
        conv_kernel: K.
        relative_width: r.
        extent: D.
        score_growth: (α, L); None: τ is 1.
        conv_scale: Multiplies the sum of keys or values and their convolution.
    """

    kind: ClassVar[str] = "relative_attention"
    conv_kernel: int = 1
    relative_width: int = 1
    extent: int = 1
    score_growth: tuple[float, int] | None = None
    conv_scale: float = 1.0

    @property
    def conv_width(self) -> int:
        """Channels of keys and values."""
        return 2 * self.num_kv_heads * self.head_dim

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Those of attention, the convolution, the projection to the profiles' weights, and the profiles."""
        return {
            **AttentionSpec.parameter_shapes(self, hidden_size),
            "conv.conv1d.weight": (self.conv_width, 1, self.conv_kernel),
            "relative_proj.weight": (self.num_heads * self.relative_width, hidden_size),
            "relative_profiles": (self.relative_width, self.extent),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """Keys and values of each token, and the convolution's last inputs."""
        conv = StateTensor("conv_state", "sequence", (self.conv_width, self.conv_kernel - 1), "state")
        return (*AttentionSpec.state(self), conv)


@dataclass(frozen=True, slots=True)
class SharedMoESpec(MoESpec):
    """Experts beside shared ones that the same router weighs.

    The router scores E + S experts. Of the first E it chooses ``top_k`` by sigmoid and correction bias. The weights of
    those and of the last S, which every row passes, are sigmoids divided by the sum of theirs, times
    ``routed_scaling_factor`` and a learned number.

    Attributes:
        num_shared_experts: S.
    """

    kind: ClassVar[str] = "shared_moe"
    num_shared_experts: int = 1

    @property
    def shared_experts(self) -> MoESpec:
        """The shared experts alone, of which every row has all."""
        count = self.num_shared_experts
        return MoESpec(count, count, self.intermediate_size, self.activation)

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Both kinds of experts are stacked as in ``MoESpec``."""
        inner, shared = self.intermediate_size, self.num_shared_experts
        return {
            **MoESpec.parameter_shapes(self, hidden_size),
            "router.weight": (self.num_experts + shared, hidden_size),
            "router.scale": (1,),
            "shared_experts.gate_up_proj": (shared, 2 * inner, hidden_size),
            "shared_experts.down_proj": (shared, hidden_size, inner),
        }


@dataclass(frozen=True, slots=True)
class MixerConvsSpec:
    """A short convolution behind each of a layer's two mixers: y becomes scale · (conv(y) + y).

    Attributes:
        width: h.
        kernel_size: K.
        scale: Multiplies the sum of a mixer's result and its convolution.
    """

    width: int
    kernel_size: int
    scale: float = 1.0

    def parameter_shapes(self) -> dict[str, Shape]:
        """Shapes of the taps, by name within the layer."""
        return {f"{name}.conv1d.weight": (self.width, 1, self.kernel_size) for name in ("token_conv", "channel_conv")}

    def state(self) -> tuple[StateTensor, ...]:
        """The last inputs of both."""
        shape = (self.width, self.kernel_size - 1)
        return tuple(
            StateTensor(name, "sequence", shape, "state") for name in ("token_conv_state", "channel_conv_state")
        )
