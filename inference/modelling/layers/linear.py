"""Linear: the one matrix product that every layer uses, so that packed and quantised weights have one home."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.backends.native import library
from inference.modelling.layers.layer import Layer, settle
from inference.modelling.layers.packed import (
    NATIVE_DTYPES,
    NativePacked,
    Packed,
    RowSource,
    native_form,
    pack_native,
    pack_onednn,
    quantise,
)
from inference.modelling.quantisation import Kind


@runtime_checkable
class Packable(Protocol):
    """A module with matrices of its own."""

    def pack(self) -> bool:
        """Replace them by the form that this machine multiplies fastest, if there is one.

        Returns:
            Whether it was done.
        """
        ...


class Linear(Layer):
    """y = x Wᵀ (+ b), the weight stored (out, in) without initialisation.

    The plain product is the reference. ``pack`` replaces the weight by a layout that products read faster;
    ``quantise`` takes the weight in fewer bits in the first place. ``weight`` is empty afterwards.

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
        self.packed: Packed | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, in_features) to (…, out_features)."""
        if self.packed is None:
            return functional.linear(hidden, self.weight, self.bias)
        return self.packed.linear(hidden, self.bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``forward`` in float32, for heads."""
        return self(hidden).float() if self.packed is None else self.packed.wide_linear(hidden, self.bias)

    @property
    def can_choose(self) -> bool:
        """Whether ``greatest`` is there."""
        return isinstance(self.packed, NativePacked)

    def greatest(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Place and value of each row's greatest logit; see ``NativePacked.greatest``."""
        assert isinstance(self.packed, NativePacked)
        return self.packed.greatest(hidden, self.bias, masked)

    def pack(self) -> bool:
        """Replace the weight by the packed form that this machine multiplies fastest, if there is one.

        Returns:
            Whether it was done.
        """
        if self.packed is not None or not can_pack(self.weight):
            return False
        self.packed = _packed(self.weight.detach())
        self.weight = _nothing(self.weight.dtype)
        return True

    def packs_natively(self, leaf: str, dtype: torch.dtype) -> bool:
        """Whether ``pack`` gives this parameter the native layout."""
        return leaf == "weight" and dtype in NATIVE_DTYPES

    def quantise(self, leaf: str, weight: torch.Tensor, kind: Kind, dtype: torch.dtype) -> None:
        """Take the weight (out, in) quantised; for the loader."""
        assert leaf == "weight", leaf
        self.packed = quantise(weight, kind, dtype=dtype)
        self.weight = _nothing(dtype, weight.device)

    def accept(self, leaf: str, packed: NativePacked, dtype: torch.dtype) -> None:
        """Take the weight as the loader has packed or quantised it, to compute in ``dtype``."""
        assert leaf == "weight", leaf
        self.packed = packed
        self.weight = _nothing(dtype)

    @property
    def packed_bytes(self) -> int:
        """Memory outside of the parameters."""
        return 0 if self.packed is None else self.packed.nbytes


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
        self.weight = nn.Parameter(torch.empty(count, width), requires_grad=False)
        self.packed: RowSource | None = None
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
    def can_choose(self) -> bool:
        """Whether ``greatest`` is there."""
        return isinstance(self.packed, NativePacked)

    def greatest(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Place and value of each row's greatest logit; see ``NativePacked.greatest``."""
        assert isinstance(self.packed, NativePacked)
        return self.packed.greatest(hidden, None, masked)

    def pack(self) -> bool:
        """Replace the table by the native layout, which serves both uses.

        Returns:
            Whether it was done.
        """
        if not self.is_head or self.packed is not None or not library.serves(self.weight):
            return False
        self._dtype = self.weight.dtype
        self.packed = pack_native(self.weight.detach(), native_form(self._dtype))
        self.weight = _nothing(self._dtype)
        return True

    def packs_natively(self, leaf: str, dtype: torch.dtype) -> bool:
        """Whether ``pack`` gives this parameter the native layout."""
        return leaf == "weight" and self.is_head and dtype in NATIVE_DTYPES

    def quantise(self, leaf: str, weight: torch.Tensor, kind: Kind, dtype: torch.dtype) -> None:
        """Take the table (V, h) quantised; for the loader."""
        assert leaf == "weight", leaf
        self._dtype = dtype
        self.packed = quantise(weight, kind, dtype=dtype)
        self.weight = _nothing(dtype, weight.device)

    def accept(self, leaf: str, packed: NativePacked, dtype: torch.dtype) -> None:
        """Take the table as the loader has packed or quantised it, to compute in ``dtype``."""
        assert leaf == "weight", leaf
        self._dtype = dtype
        self.packed = packed
        self.weight = _nothing(dtype)

    @property
    def packed_bytes(self) -> int:
        """Memory outside of the parameters."""
        return 0 if self.packed is None else self.packed.nbytes


def _nothing(dtype: torch.dtype, device: torch.device | str = "cpu") -> nn.Parameter:
    return nn.Parameter(torch.empty(0, dtype=dtype, device=device), requires_grad=False)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether there is a packed product for this weight here."""
    return weight.numel() > 0 and (library.serves(weight) or _onednn_serves(weight))


def _onednn_serves(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _onednn_has_bfloat16()


def _onednn_has_bfloat16() -> bool:
    return bool(
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _packed(weight: torch.Tensor) -> Packed:
    """The native product; without the kernels oneDNN's, for bfloat16 (docs/decisions/0010 and 0034)."""
    if library.serves(weight):
        return pack_native(weight, native_form(weight.dtype))
    return pack_onednn(weight)


def pack_weights(network: nn.Module) -> int:
    """Pack every matrix of a loaded network that has a ``pack``, one by one, so that one weight is there twice.

    The weights are in their final form then, so lookups are settled too.

    Returns:
        Number of modules whose matrices were packed.
    """
    packed = sum(module.pack() for module in network.modules() if isinstance(module, Packable))
    settle(network)
    return packed


def network_bytes(network: nn.Module) -> int:
    """Memory of all weights, packed ones included."""
    plain = sum(parameter.nbytes for parameter in network.parameters())
    return plain + sum(getattr(module, "packed_bytes", 0) for module in network.modules())
