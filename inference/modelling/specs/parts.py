"""Parts of layer specs: norms, rotary embeddings, state tensors; types and names that all specs share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

_T = TypeVar("_T")
Shape = tuple[int, ...]
Dtype = Literal["float32", "bfloat16", "float16"]
StateDtype = Literal["float32", "bfloat16"]
STATE_DTYPES: tuple[StateDtype, ...] = ("float32", "bfloat16")
"""What recurrent states are stored in."""
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the last axis.

    ``rms``: x / sqrt(mean(x²) + eps) · (w + offset), statistics in float32.
    ``layer``: subtracts the mean first, biased variance; weight, and bias where ``has_bias``.
    ``weightless`` drops both. ``scales_input`` multiplies x by the weights first, and nothing behind (Muse Spark).
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-5
    offset: float = 0.0
    weightless: bool = False
    has_bias: bool = True
    scales_input: bool = False

    def parameter_names(self) -> tuple[str, ...]:
        """Names of this norm's own parameters."""
        if self.weightless:
            return ()
        return ("weight", "bias") if self.kind == "layer" and self.has_bias else ("weight",)

    def parameter_shapes(self, *shape: int) -> dict[str, Shape]:
        """Shapes of this norm's own parameters, each (width,) or, over heads with weights of their own, (H, width)."""
        return dict.fromkeys(self.parameter_names(), shape)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    Attributes:
        kind: ``linear`` (frequencies / factor), ``llama3`` (by wavelength bands), ``yarn``
            (Peng et al. 2023, https://arxiv.org/abs/2309.00071), ``longrope`` (per-frequency factors),
            ``dynamic`` (NTK; base grows with the length).
        attention_factor: Multiplies cos and sin; None: the kind's own rule.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope", "dynamic"]
    factor: float = 1.0
    original_max_position_embeddings: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the first ``rotary_dim`` values of a head.

    ``interleaved`` rotates adjacent pairs (2i, 2i+1); otherwise pairs are (i, i + rotary_dim/2). ``is_reversed``
    turns them the other way (nanochat).

    Attributes:
        turning_pairs: Only so many pairs, the fastest, turn; None: all (Gemma 4's ``proportional`` rotation).
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    scaling: RopeScaling | None = None
    max_position_embeddings: int = 4096
    is_reversed: bool = False
    turning_pairs: int | None = None

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies depend on how long the sequence is (``ForwardBatch.rope_lengths``)."""
        return self.scaling is not None and self.scaling.kind in ("longrope", "dynamic")


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a layer's generation state.

    ``per='token'`` lives in paged blocks, one entry of ``shape`` for each token; ``per='sequence'``
    lives in a state slot, one entry for each running request. dtype ``model`` follows the weights, ``state`` the option
    ``state_dtype``; ``float32`` is for what a rounded value would spoil: token numbers, angles that add up, exponents,
    and the sums that a result is divided by.
    """

    name: str
    per: Literal["token", "sequence"]
    shape: Shape
    dtype: Literal["model", "state", "float32"] = "model"

    def stored_dtype(self, model_dtype: str, state_dtype: str = "float32") -> str:
        """The dtype in memory, given those of the weights and of recurrent states."""
        return {"model": model_dtype, "state": state_dtype, "float32": "float32"}[self.dtype]

    def size_bytes(self, model_dtype: str, state_dtype: str = "float32") -> int:
        """Bytes of one entry."""
        return math.prod(self.shape) * DTYPE_BYTES[self.stored_dtype(model_dtype, state_dtype)]


def prefixed(prefix: str, named: Mapping[str, _T]) -> dict[str, _T]:
    """The same values under longer parameter names."""
    return {f"{prefix}.{name}": value for name, value in named.items()}
