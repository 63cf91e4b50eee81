"""Linear: the one matrix product that every layer uses, so that packed weights have one home."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_PACKING_BATCH_HINT = 8
"""oneDNN lays the weight out for about this many rows; 1 to 512 made no difference where it was measured."""


class Linear(nn.Module):
    """y = x Wᵀ (+ b), the weight stored (out, in) without initialisation.

    The plain product is the reference. ``pack`` replaces the weight by oneDNN's own layout, which spares each call
    the rearrangement: twice as fast for a few rows in bfloat16 (docs/performance.md).

    Args:
        in_features: Length of the input's last axis.
        out_features: Length of the output's.
        bias: Whether there is a b.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self._packed: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, in_features) to (…, out_features)."""
        if self._packed is None:
            return functional.linear(hidden, self.weight, self.bias)
        if hidden.numel() == 0:
            return hidden.new_empty(*hidden.shape[:-1], self.out_features)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self._packed, self.bias, "none", [], "")
        return product

    def pack(self) -> bool:
        """Replace the weight by its packed form, if it is bfloat16 on a processor that computes in it.

        Afterwards ``weight`` is empty: the dense copy is freed.

        Returns:
            Whether it was done.
        """
        if not can_pack(self.weight):
            return False
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _PACKING_BATCH_HINT)
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)
        return True


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a packed bfloat16 product for this weight here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.numel() > 0
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack_linears(network: nn.Module) -> int:
    """Pack every ``Linear`` of a loaded network, one after the other, so that only one weight is there twice.

    Returns:
        Number of layers packed.
    """
    return sum(module.pack() for module in network.modules() if isinstance(module, Linear))
