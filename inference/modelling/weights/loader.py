"""Fill a network from safetensors files, one parameter at a time, so that the peak stays near the weights' size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch
from torch import nn

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.backends.backend import use_triton
from inference.modelling.backends.native import library
from inference.modelling.layers.linear import Packable
from inference.modelling.layers.packed import NATIVE_DTYPES, NativePacked, PackedRows, can_stream, native_form
from inference.modelling.mapped import mapped_zeros
from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import GROUP_SIZES, Kind, Quant, quantised_kind
from inference.modelling.spec import ModelSpec, Piece, Source
from inference.modelling.weights.files import TensorFiles

_STORED = (torch.bfloat16, torch.float32)
"""What is quantised as it is stored."""

Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and the parameter's name."""


class Quantisable(Protocol):
    """A module that takes matrices quantised."""

    def quantise(self, leaf: str, weight: torch.Tensor, kind: Kind, dtype: torch.dtype) -> None:
        """Take parameter ``leaf``, float32 or bfloat16 as stored, to compute in ``dtype``."""
        ...


@runtime_checkable
class Streamable(Protocol):
    """A module that takes matrices in the native layout, which can be made while they are read."""

    def packs_natively(self, leaf: str, dtype: torch.dtype) -> bool:
        """Whether its ``pack`` gives parameter ``leaf`` of ``dtype`` the native layout."""
        ...

    def accept(self, leaf: str, packed: NativePacked, dtype: torch.dtype) -> None:
        """Take parameter ``leaf``, to compute in ``dtype``."""
        ...


def load_network(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: Quant = "none",
    pack: bool = False,
    progress: Progress | None = None,
) -> HybridForCausalLM:
    """Build the network and read its weights.

    At the peak there are the weights as they stay, one parameter as it is stored, and what is read ahead.

    Args:
        spec: What to build.
        weight_files: The checkpoint's safetensors files.
        dtype: dtype of the parameters, except those that a layer keeps in float32 (``float32_parameters``).
        device: Where they go.
        quant: What the matrices become (``inference.modelling.quantisation``).
        pack: Pack matrices as soon as they are there; ``pack_weights`` finds what is left.
        progress: Called once per parameter.

    Raises:
        CheckpointError: A tensor is missing or has the wrong shape, or a file is broken.
    """
    with torch.device("meta"):
        network = HybridForCausalLM(spec)
    wanted = dict(network.named_parameters())
    if wanted.keys() != spec.parameters.keys():
        odd = sorted(wanted.keys() ^ spec.parameters.keys())[:5]
        raise MissingTensor(f"the spec and the network disagree on the parameters {', '.join(odd)}.", param=odd[0])
    may_stream = _packs_natively(torch.device(device), dtype)
    with TensorFiles(weight_files) as files, torch.inference_mode():
        # As the files have them: what lies together is read at the rate that a reading from end to end has.
        order = sorted(spec.parameters.items(), key=lambda item: min(map(files.position_of, _stored_names(item[1]))))
        streams: dict[int, PackedRows] = {}
        for number, (name, source) in enumerate(order if may_stream else ()):
            form = _streamed_form(network, name, wanted[name].shape, dtype, quant, pack)
            stored = None if form is None else _streamed_dtype(files, source, wanted[name].shape)
            if form is not None and stored is not None and stored in (dtype, *(_STORED if form in GROUP_SIZES else ())):
                streams[number] = PackedRows(wanted[name].shape, form, stored)
        files.expect([_stored_names(source) for _, source in order], streams)
        for number, (name, source) in enumerate(order):
            files.move()
            if progress is not None:
                progress(number / len(wanted), name)
            owner, leaf = _owner(network, name)
            kind = quantised_kind(name, wanted[name].shape, quant)
            if number in streams:
                files.finish()
                cast("Streamable", owner).accept(leaf, streams.pop(number).packed, dtype)
                continue
            if kind is not None:
                value = _assemble(files, source, wanted[name].shape, name, None).to(device)
                cast("Quantisable", owner).quantise(leaf, value, kind, dtype)
            else:
                target = torch.float32 if leaf in getattr(owner, "float32_parameters", ()) else dtype
                value = _assemble(files, source, wanted[name].shape, name, target).to(device)
                setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
                if pack and isinstance(owner, Packable) and not any(part.is_meta for part in owner.parameters()):
                    owner.pack()
                if value.device.type == "cpu" and _is_used(owner, leaf, value):
                    files.keep()
            del value
    if progress is not None:
        progress(1.0, "")
    return network.eval()


def _packs_natively(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are native layouts for what is computed there in ``dtype``."""
    is_host = device.type == "cpu" and not use_triton(torch.empty(0, device=device))
    return is_host and dtype in NATIVE_DTYPES and library.is_available()


def _streamed_form(
    network: nn.Module, name: str, shape: torch.Size, dtype: torch.dtype, quant: Quant, pack: bool
) -> str | None:
    """The native layout that a parameter is going to have; None: another form, or only later."""
    owner, leaf = _owner(network, name)
    if not isinstance(owner, Streamable):
        return None
    kind = quantised_kind(name, shape, quant)
    if kind is not None:
        return kind
    return native_form(dtype) if pack and owner.packs_natively(leaf, dtype) else None


def _streamed_dtype(files: TensorFiles, source: Source, shape: torch.Size) -> torch.dtype | None:
    """How a parameter is stored that can be packed as it is read; None: it can't."""
    names = _joined_names(files, source, shape)
    if names is None or not can_stream(shape, [files.shape_of(name) for name in names]):
        return None
    dtypes = {files.dtype_of(name) for name in names}
    return dtypes.pop() if len(dtypes) == 1 else None


def _is_used(owner: nn.Module, leaf: str, value: torch.Tensor) -> bool:
    """Whether a parameter still is this tensor, and not packed by now."""
    parameter: nn.Parameter = getattr(owner, leaf)
    return parameter.numel() > 0 and parameter.data_ptr() == value.data_ptr()


def _stored_names(source: Source) -> list[str]:
    """Of the tensors that a parameter is made of."""
    if source.num_experts is None:
        return [piece.name for piece in source.pieces]
    names = [piece.name.replace("{e}", str(number)) for number in range(source.num_experts) for piece in source.pieces]
    return list(dict.fromkeys(names))  # a stack of all experts is one tensor


def _owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return network.get_submodule(path), leaf


def _assemble(
    files: TensorFiles, source: Source, shape: torch.Size, name: str, dtype: torch.dtype | None
) -> torch.Tensor:
    """One parameter of the wanted shape.

    Args:
        dtype: Of the result. None: bfloat16 where everything is stored so, else float32.

    Returns:
        Perhaps in the memory of the files, which use it again unless they are told to keep it.
    """
    joined = _joined(files, source, shape)
    if joined is not None and (joined.dtype == dtype or (dtype is None and joined.dtype in _STORED)):
        return joined
    experts: list[int | None] = [None] if source.num_experts is None else list(range(source.num_experts))
    out = None if dtype is None else mapped_zeros(shape, dtype)
    for expert in experts:
        parts = [_read_piece(files, piece, expert) for piece in source.pieces]
        if out is None:
            common = parts[0].dtype if parts[0].dtype in _STORED else torch.float32
            if any(part.dtype != common for part in parts):
                common = torch.float32
            if len(parts) == 1 and expert is None and parts[0].dtype == common and tuple(parts[0].shape) == shape:
                return parts[0].contiguous()
            out = mapped_zeros(shape, common)
        target = out if expert is None else out[expert]
        rows = sum(part.shape[0] for part in parts) if parts[0].dim() else 0
        found = (rows, *parts[0].shape[1:]) if len(parts) > 1 else tuple(parts[0].shape)
        if found != tuple(target.shape):
            names = ", ".join(piece.name for piece in source.pieces)
            raise TensorShapeMismatch(
                f"{names} gives shape {list(found)} for {name}; {list(target.shape)} is needed.", param=names
            )
        start = 0
        for part in parts:
            stop = start + part.shape[0]
            target[start:stop].copy_(part)
            start = stop
    assert out is not None
    return out


def _joined(files: TensorFiles, source: Source, shape: torch.Size) -> torch.Tensor | None:
    """A parameter whose tensors only have to lie one behind the other: as they were read. None: it isn't one."""
    names = _joined_names(files, source, shape)
    flat = None if names is None else files.read_joined(names)
    return None if flat is None else flat.view(shape)


def _joined_names(files: TensorFiles, source: Source, shape: torch.Size) -> list[str] | None:
    """The tensors of such a parameter, in order; None: it isn't one."""
    names = _stored_names(source)
    count = 1 if source.num_experts is None else source.num_experts
    inner = shape if source.num_experts is None else shape[1:]
    if any(piece != Piece(piece.name) for piece in source.pieces) or len(names) != count * len(source.pieces):
        return None
    if not inner or (source.num_experts is not None and count != shape[0]):
        return None
    shapes = [files.shape_of(name) for name in names]
    for first in range(0, len(names), len(source.pieces)):
        parts = shapes[first : first + len(source.pieces)]
        if any(part[1:] != inner[1:] for part in parts) or sum(part[0] for part in parts) != inner[0]:
            return None
    return names


def _read_piece(files: TensorFiles, piece: Piece, expert: int | None) -> torch.Tensor:
    name = piece.name if expert is None else piece.name.replace("{e}", str(expert))
    value = files.read(name)
    if piece.index is not None:
        value = value[expert if piece.index == -1 and expert is not None else piece.index]
    if piece.transpose:
        value = value.transpose(-1, -2)
    if piece.rows is not None:
        value = value[piece.rows[0] : piece.rows[1]]
    if piece.per_group is not None:
        size, begin, end = piece.per_group
        value = value.reshape(-1, size, *value.shape[1:])[:, begin:end].reshape(-1, *value.shape[1:])
    if piece.stride is not None:
        value = value[piece.stride[0] :: piece.stride[1]]
    if piece.reshape is not None:
        value = value.reshape(piece.reshape)
    return value
