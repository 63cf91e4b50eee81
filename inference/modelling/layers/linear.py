"""Linear and Embedding: the matrix products of all layers, so that packed and quantised weights have one home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.packed import Packed, PackedHead, PackedTable, empty_parameter


class Linear(Layer):
    """y = x Wᵀ (+ b), the weight stored (out, in) without initialisation.

    A backend may replace the weight by a packed form, which products read faster or in fewer bits; ``weight`` is
    empty afterwards.

    Args:
        in_features: Length of the input's last axis.
        out_features: Length of the output's.
        bias: Whether there is a b.

    Attributes:
        rounds_inputs: Each row of x is rounded to 8 bits by its greatest magnitude (BitNet).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.packed: Packed | None = None
        self.rounds_inputs = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, in_features) to (…, out_features)."""
        if self.rounds_inputs:
            hidden = rounded_to_bytes(hidden)
        if self.packed is None:
            return functional.linear(hidden, self.weight, self.bias)
        return self.packed.linear(hidden, self.bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``forward`` in float32, for heads."""
        return self(hidden).float() if self.packed is None else self.packed.wide_linear(hidden, self.bias)

    @property
    def has_argmax(self) -> bool:
        """Whether the weight is in a form that ``argmax`` needs."""
        return hasattr(self.packed, "argmax")

    def argmax(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and value of each row's greatest logit; see ``PackedHead``."""
        return cast("PackedHead", self.packed).argmax(hidden, self.bias, masked)

    def plain_matrices(self) -> Mapping[str, torch.Tensor]:
        """The weight, unless it is packed."""
        return {"weight": self.weight} if self.packed is None else {}

    def accept(self, leaf: str, packed: Packed, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Replace the weight by its packed form, to compute in ``dtype``."""
        assert leaf == "weight", leaf
        self.packed = packed
        self.weight = empty_parameter(dtype, device)

    @property
    def packed_bytes(self) -> int:
        return 0 if self.packed is None else self.packed.nbytes


def rounded_to_bytes(hidden: torch.Tensor) -> torch.Tensor:
    """(…, K), each row in steps of its greatest magnitude / 127.

    Source: https://arxiv.org/abs/2402.17764, and transformers' ``integrations/bitnet.py`` for what small rows do.
    """
    values = hidden.float()
    scale = 127 / values.abs().amax(-1, keepdim=True).clamp_(min=1e-5)
    return ((values * scale).round_().clamp_(-128, 127) / scale).to(hidden.dtype)


class Embedding(Layer):
    """Rows by token id; with a tied head also the product with all rows.

    Args:
        count: V.
        width: h.
        is_head: Whether ``logits`` is used; only then is packing worth it.
    """

    def __init__(self, count: int, width: int, *, is_head: bool) -> None:
        super().__init__()
        self.is_head = is_head
        self.out_features, self.in_features = count, width
        self.weight = nn.Parameter(torch.empty(count, width), requires_grad=False)
        self.packed: PackedTable | None = None
        self._dtype = self.weight.dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(T,) int64 to (T, h)."""
        if self.packed is None:
            return functional.embedding(ids, self.weight)
        return self.packed.rows(ids, self._dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, h) to (n, V) float32: the tied head."""
        if self.packed is None:
            return functional.linear(hidden, self.weight).float()
        return self.packed.wide_linear(hidden, None)

    @property
    def has_argmax(self) -> bool:
        """Whether the table is in a form that ``argmax`` needs."""
        return hasattr(self.packed, "argmax")

    def argmax(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and value of each row's greatest logit; see ``PackedHead``."""
        return cast("PackedHead", self.packed).argmax(hidden, None, masked)

    def plain_matrices(self) -> Mapping[str, torch.Tensor]:
        """The table of a tied head, unless it is packed."""
        return {"weight": self.weight} if self.is_head and self.packed is None else {}

    def accept(self, leaf: str, packed: Packed, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Replace the table by its packed form, to compute in ``dtype``."""
        assert leaf == "weight", leaf
        self._dtype = dtype
        self.packed = cast("PackedTable", packed)
        self.weight = empty_parameter(dtype, device)

    @property
    def packed_bytes(self) -> int:
        return 0 if self.packed is None else self.packed.nbytes


def network_bytes(network: nn.Module) -> int:
    """Memory of all weights, packed ones included."""
    plain = sum(parameter.nbytes for parameter in network.parameters())
    return plain + sum(getattr(module, "packed_bytes", 0) for module in network.modules())
