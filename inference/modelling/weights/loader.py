"""Fill a network from safetensors files, one parameter at a time, so that the peak stays near the weights' size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec, Piece, Source

Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and the parameter's name."""


class TensorFiles:
    """Read access to the tensors of several safetensors files by name. Use as a context manager."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._paths = list(files)
        self._stack = ExitStack()
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> TensorFiles:
        for path in self._paths:
            try:
                handle = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise CorruptCheckpoint(
                    f"{path.name} can't be read as safetensors: {error}.", param=path.name
                ) from None
            for name in handle.keys():  # noqa: SIM118 (not a mapping)
                self._handles[name] = handle
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def read(self, name: str) -> torch.Tensor:
        """The tensor, mapped from the file where the library can.

        Raises:
            MissingTensor: No file has it.
        """
        handle = self._handles.get(name)
        if handle is None:
            raise MissingTensor(f"tensor {name} is missing from the checkpoint.", param=name)
        found: torch.Tensor = handle.get_tensor(name)
        return found


def load_network(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> HybridForCausalLM:
    """Build the network and read its weights.

    Args:
        spec: What to build.
        weight_files: The checkpoint's safetensors files.
        dtype: dtype of the parameters, except those that a layer keeps in float32 (``float32_parameters``).
        device: Where they go.
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
    with TensorFiles(weight_files) as files, torch.inference_mode():
        for number, (name, source) in enumerate(spec.parameters.items()):
            if progress is not None:
                progress(number / len(wanted), name)
            owner, leaf = _owner(network, name)
            target = torch.float32 if leaf in getattr(owner, "float32_parameters", ()) else dtype
            value = _assemble(files, source, wanted[name].shape, name, target).to(device)
            setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
    if progress is not None:
        progress(1.0, "")
    return network.eval()


def _owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return network.get_submodule(path), leaf


def _assemble(files: TensorFiles, source: Source, shape: torch.Size, name: str, dtype: torch.dtype) -> torch.Tensor:
    """One parameter of the wanted shape, owning its memory."""
    out = torch.empty(shape, dtype=dtype)
    experts = [None] if source.num_experts is None else list(range(source.num_experts))
    for expert in experts:
        target = out if expert is None else out[expert]
        parts = [_read_piece(files, piece, expert) for piece in source.pieces]
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
    return out


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
