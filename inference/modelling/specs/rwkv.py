"""Specs of RWKV-4's two mixers, each of which mixes a token's row with the row before it.

Shape letters: h hidden, A width of the time mixing, f intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.parts import Shape, StateTensor


@dataclass(frozen=True, slots=True)
class TimeMixSpec:
    """A mean of all earlier values with weights e^(key - age · decay), https://arxiv.org/abs/2305.13048, section 3.

    Attributes:
        row_width: h, of the row that is kept.
        width: A, channels.
    """

    kind: ClassVar[str] = "time_mix"
    row_width: int
    width: int

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``decay`` is the logarithm of the decay's rate, ``bonus`` is added to a token's own key."""
        return {
            "key_mix": (hidden_size,),
            "value_mix": (hidden_size,),
            "receptance_mix": (hidden_size,),
            "key_proj.weight": (self.width, hidden_size),
            "value_proj.weight": (self.width, hidden_size),
            "receptance_proj.weight": (self.width, hidden_size),
            "decay": (self.width,),
            "bonus": (self.width,),
            "out_proj.weight": (hidden_size, self.width),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The last row; the weighted sum of values and the sum of weights, both over e^m, and m, in log domain."""
        return (
            StateTensor("shift_state", "sequence", (self.row_width,), "state"),
            StateTensor("wkv_state", "sequence", (self.width,), "state"),
            StateTensor("weight_state", "sequence", (self.width,), "float32"),
            StateTensor("max_state", "sequence", (self.width,), "float32"),
        )


@dataclass(frozen=True, slots=True)
class ChannelMixSpec:
    """sigmoid(receptance) · down(relu(up)²): RWKV's MLP, which reads the row before too.

    A token mixer in a layer of its own: it has a state.

    Attributes:
        row_width: h, of the row that is kept.
        intermediate_size: f.
    """

    kind: ClassVar[str] = "channel_mix"
    row_width: int
    intermediate_size: int

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        return {
            "key_mix": (hidden_size,),
            "receptance_mix": (hidden_size,),
            "up_proj.weight": (self.intermediate_size, hidden_size),
            "receptance_proj.weight": (hidden_size, hidden_size),
            "down_proj.weight": (hidden_size, self.intermediate_size),
        }

    def state(self) -> tuple[StateTensor, ...]:
        """The last row."""
        return (StateTensor("shift_state", "sequence", (self.row_width,), "state"),)
