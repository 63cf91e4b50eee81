"""Backend: the faster forms of layers and weights that a device and dtype have, chosen once per network.

The network's layers are plain PyTorch. A backend packs and quantises their weights, puts a faster form in place of some
methods of each layer, and replays decode steps. It is chosen by device and dtype and by what is installed, never by
trying: Triton kernels on CUDA, the native library on the CPU, else what PyTorch offers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import nn

from inference.modelling.backends.native import library
from inference.modelling.backends.native.decode_programs import DecodePrograms, Forward
from inference.modelling.backends.native.forms import BFLOAT16_STATES
from inference.modelling.backends.native.forms import FORMS as NATIVE_FORMS
from inference.modelling.backends.native.packing import (
    NATIVE_DTYPES,
    NativeStore,
    PackedRows,
    arrange_codes,
    can_stream,
    native_form,
    pack_native,
)
from inference.modelling.backends.plain import onednn_serves, pack_onednn, row_maxima
from inference.modelling.backends.triton.cuda_graphs import DecodeGraphs, StaticBatch
from inference.modelling.forward_batch import LayerState
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.coded import CodeSink, CodeStore, PlainCoded, PlainStore
from inference.modelling.layers.compressed_attention import CompressedAttention
from inference.modelling.layers.layer import Layer, cache_attributes
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.layers.moe import Experts
from inference.modelling.layers.packed import Packable, PackedStack, PackedTable, PlainQuantised, quantise_plainly
from inference.modelling.quantisation import CodedRows, Form, Kind
from inference.modelling.spec import ModelSpec

PRESENT = find_spec("triton") is not None
"""Whether triton is installed. torch's builds for CUDA bring it along; those for a CPU don't."""

INTERPRETED = PRESENT and os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch for debugging: its kernels then run on the CPU, statement by statement in numpy. With it the
Triton backend serves CPU tensors too, which is how that path is tested without a device."""

Forms = Mapping[type[nn.Module], Mapping[str, Callable[..., Any]]]
"""Layer type to the methods that are replaced, by name; each form takes the layer as its first argument."""


class Backend:
    """PyTorch alone; the base of the other backends.

    Args:
        device: Where the network is.
        dtype: What it computes in.
    """

    warm_up_rows: Sequence[int] = ()
    """Numbers of rows for which products have kernels of their own, to be compiled before the first request."""

    bfloat16_states: frozenset[str] = frozenset()
    """Names of the recurrent states that the forms read and write in bfloat16 too."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def forms(self) -> Forms:
        """The layer types whose methods this backend replaces."""
        return {}

    def bind(self, network: nn.Module) -> None:
        """Put this backend's forms in the place of the layers' methods, instead of another backend's."""
        forms = self.forms()
        for module in network.modules():
            for name in [name for name, value in vars(module).items() if isinstance(value, MethodType)]:
                delattr(module, name)
            for name, form in forms.get(type(module), {}).items():
                setattr(module, name, MethodType(form, module))
            if isinstance(module, Layer):
                module.bfloat16_states = self.bfloat16_states

    def pack(self, layer: nn.Module) -> bool:
        """Replace a layer's matrices by the form that this backend multiplies fastest, if there is one.

        Returns:
            Whether it was done.
        """
        # oneDNN's form returns no single rows and has no stacks.
        if not isinstance(layer, Linear) or not onednn_serves(layer.weight.device, layer.weight.dtype):
            return False
        for leaf, matrix in (plain := layer.plain_matrices()).items():
            layer.accept(leaf, pack_onednn(matrix.detach()), matrix.dtype)
        return bool(plain)

    def quantise(self, weight: torch.Tensor, kind: Kind) -> PackedTable | PackedStack:
        """Quantise (N, K), or a stack (E, N, K), float32 or bfloat16."""
        return quantise_plainly(weight, kind)

    def keep_codes(self, quantised: PlainQuantised) -> PackedTable | PackedStack:
        """Put codes and scales on the CPU into this backend's layout, value by value the same."""
        return quantised.to(self.device)

    def row_packer(
        self,
        layer: nn.Module,
        leaf: str,
        shape: torch.Size,
        *,
        stored: torch.dtype,
        parts: Sequence[Sequence[int]],
        kind: Kind | None,
        pack: bool,
    ) -> PackedRows | None:
        """What packs a parameter while its rows are read, so that its stored form is never there as a whole.

        Args:
            layer: Owner of the parameter.
            leaf: The parameter's name.
            shape: Its shape.
            stored: dtype in the files.
            parts: Shapes of the stored tensors, one below the other.
            kind: How it is quantised; None: not.
            pack: Whether matrices that aren't quantised are packed.

        Returns:
            None: It is packed once it is there, if at all.
        """
        return None

    def code_sink(self, shape: torch.Size, rows: Sequence[CodedRows]) -> CodeSink:
        """What packs a parameter whose codes are kept, while its rows are read.

        Args:
            shape: Its shape.
            rows: Forms of its rows; a stack has one.
        """
        whole = len(rows) == 1
        return CodeSink(
            [(part.rows, self.code_store(shape if whole else (part.rows, shape[-1]), part.form)) for part in rows],
            self.device,
        )

    def code_store(self, shape: Sequence[int], form: Form) -> CodeStore:
        """Memory for a matrix or stack in codes."""
        return PlainStore(shape, form, self.device)

    def row_maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and value of each row's maximum of (n, V) float32, the first among equals; NaN in a row with a NaN.

        Returns:
            (n,) int64 and (n,) float32.
        """
        return row_maxima(logits)

    def decode_programs(self, forward: Forward, states: Sequence[LayerState]) -> DecodePrograms | None:
        """Replay of decodes on the CPU; None: decodes run eagerly.

        Args:
            forward: A network with this backend's forms.
            states: Of its layers.
        """
        return None

    def capture_decodes(
        self, network: nn.Module, spec: ModelSpec, states: Sequence[LayerState], *, max_rows: int, max_blocks: int,
        block_size: int,
    ) -> DecodeGraphs | None:  # fmt: skip
        """Capture decodes in CUDA graphs; None: decodes run eagerly.

        Args:
            network: With this backend's forms, warmed up.
            spec: What it was built from.
            states: Of its layers.
            max_rows: Most decodes of a step.
            max_blocks: Most entries of all block tables of a step together.
            block_size: Tokens in one block; 0: the model has no paged state.
        """
        return None


class NativeBackend(Backend):
    """The native library's kernels: float32 and bfloat16 on the CPU."""

    bfloat16_states = BFLOAT16_STATES

    def forms(self) -> Forms:
        """The layer types whose methods this backend replaces."""
        return NATIVE_FORMS

    def pack(self, layer: nn.Module) -> bool:
        """Replace a layer's matrices by the native layout."""
        if not isinstance(layer, Packable):
            return False
        plain = layer.plain_matrices()
        if not all(matrix.is_cpu and matrix.dtype in NATIVE_DTYPES for matrix in plain.values()):
            return False
        for leaf, matrix in plain.items():
            layer.accept(leaf, pack_native(matrix.detach(), native_form(matrix.dtype)), matrix.dtype)
        return bool(plain)

    def quantise(self, weight: torch.Tensor, kind: Kind) -> PackedTable | PackedStack:
        """Quantise in the native layout."""
        return pack_native(weight, kind)

    def keep_codes(self, quantised: PlainQuantised) -> PackedTable | PackedStack:
        """Put codes and scales into the native layout."""
        return arrange_codes(quantised)

    def row_packer(
        self,
        layer: nn.Module,
        leaf: str,
        shape: torch.Size,
        *,
        stored: torch.dtype,
        parts: Sequence[Sequence[int]],
        kind: Kind | None,
        pack: bool,
    ) -> PackedRows | None:
        """Pack rows into the native layout, quantised or as they are stored."""
        if not isinstance(layer, Packable) or not can_stream(shape, parts):
            return None
        if kind is not None:
            return PackedRows(shape, kind, stored) if stored in NATIVE_DTYPES else None
        if pack and leaf in layer.plain_matrices() and stored == self.dtype:
            return PackedRows(shape, native_form(stored), stored)
        return None

    def code_store(self, shape: Sequence[int], form: Form) -> CodeStore:
        """Memory for a matrix or stack in codes, in the native layout."""
        return NativeStore(shape, form)

    def row_maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and value of each row's maximum."""
        places, values = torch.ops.blazr.row_maxima.default(logits.contiguous())
        return places, values

    def decode_programs(self, forward: Forward, states: Sequence[LayerState]) -> DecodePrograms | None:
        """Replay of decodes: all layers run on kernels, which do the same whatever the contexts are."""
        return DecodePrograms(forward, states)


class TritonBackend(Backend):
    """Triton kernels on a CUDA device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        # Not at the head: triton isn't installed everywhere, and takes a second to import.
        from inference.modelling.backends.triton import coded, forms, quantised

        self._forms, self._quantised, self._coded = forms.FORMS, quantised, coded
        self.warm_up_rows = quantised.PRODUCT_ROWS

    def forms(self) -> Forms:
        """The layer types whose methods this backend replaces."""
        return self._forms

    def pack(self, layer: nn.Module) -> bool:
        """Plain matrices are what the device's libraries multiply."""
        return False

    def quantise(self, weight: torch.Tensor, kind: Kind) -> PackedTable | PackedStack:
        """Quantise in the layout that the kernels read."""
        return self._quantised.quantise_for_device(weight, kind)

    def keep_codes(self, quantised: PlainQuantised) -> PackedTable | PackedStack:
        """Put codes and scales into the layout that the kernels read."""
        return self._quantised.arrange_for_device(quantised.to(self.device))

    def code_store(self, shape: Sequence[int], form: Form) -> CodeStore:
        """Memory for a matrix or stack in codes, which the kernels read."""
        return self._coded.DeviceStore(PlainStore(shape, form, self.device))

    def capture_decodes(
        self, network: nn.Module, spec: ModelSpec, states: Sequence[LayerState], *, max_rows: int, max_blocks: int,
        block_size: int,
    ) -> DecodeGraphs | None:  # fmt: skip
        """Capture decodes in CUDA graphs, unless a layer waits for the device."""
        if self.device.type != "cuda" or not can_capture(network):
            return None
        static = StaticBatch(max_rows, max_blocks, block_size, self.device)
        graphs = DecodeGraphs(network, spec, states, static, max_rows)
        graphs.capture()
        return graphs


CHECKED = (Attention, CompressedAttention, MultiHeadLatentAttention, Experts)
"""Layer types whose options not all kernels have."""


def can_capture(network: nn.Module) -> bool:
    """Whether no layer waits for the device.

    Experts that no kernel takes do, to count their rows, and attention that none takes, for the longest context.
    """
    if not all(module.is_plain for module in network.modules() if isinstance(module, CHECKED)):
        return False
    experts = [module for module in network.modules() if isinstance(module, Experts)]
    plain = (PlainQuantised, PlainCoded)
    return not any(isinstance(stack, plain) for layer in experts for stack in layer.packed.values())


def choose_backend(device: torch.device | str, dtype: torch.dtype) -> Backend:
    """The fastest backend for networks on a device that compute in ``dtype``."""
    device = torch.device(device)
    if (PRESENT and device.type == "cuda") or INTERPRETED:
        return TritonBackend(device, dtype)
    if device.type == "cpu" and dtype in NATIVE_DTYPES and library.is_available():
        return NativeBackend(device, dtype)
    return Backend(device, dtype)


def bind_backend(network: nn.Module) -> Backend:
    """Choose the backend of a network by its weights, and bind its forms."""
    weight = next(network.parameters())
    backend = choose_backend(weight.device, weight.dtype)
    backend.bind(network)
    return backend


def pack_weights(network: nn.Module) -> int:
    """Bind a loaded network's backend and pack every matrix, one by one, so that one weight is there twice.

    The weights are in their final form then, so attributes are cached too.

    Returns:
        Number of modules whose matrices were packed.
    """
    backend = bind_backend(network)
    packed = sum(backend.pack(module) for module in network.modules())
    cache_attributes(network)
    return packed
