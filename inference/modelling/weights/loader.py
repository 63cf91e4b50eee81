"""Fill a network from safetensors or GGUF files, one parameter at a time.

So the peak of memory stays near the weights' size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

import torch
from torch import nn

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.backends.backend import Backend, choose_backend
from inference.modelling.backends.native.packing import PackedRows
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.blazr import CODES, SCALES
from inference.modelling.layers.coded import CodeSink
from inference.modelling.layers.ngram import NGramHash
from inference.modelling.layers.packed import Packable, PlainQuantised
from inference.modelling.layers.token_moe import TokenMixtureOfExperts
from inference.modelling.mapped import mapped_zeros
from inference.modelling.network import HybridForCausalLM
from inference.modelling.prediction_head import PredictionHead
from inference.modelling.quantisation import (
    OWN_FORMS,
    CodedRows,
    Kind,
    Quant,
    code_bytes,
    coded_parameters,
    kept_kinds,
    quantised_kinds,
)
from inference.modelling.sources import joined_names, stored_names
from inference.modelling.spec import ModelSpec, PredictionHeadSpec
from inference.modelling.specs.sources import Piece, Source
from inference.modelling.vision.encoder import ImageEncoder
from inference.modelling.vision.specs import VisionSpec
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.piece_rows import take_rows

logger = logging.getLogger(__name__)

_STORED = (torch.bfloat16, torch.float32)
"""What is quantised as it is stored."""

_Spec = TypeVar("_Spec", bound=ModelSpec | VisionSpec)
_Network = TypeVar("_Network", bound=nn.Module)


class Changes(Protocol):
    """What stored tensors become before they are put to use: adapters that are merged into them."""

    @property
    def names(self) -> Collection[str]:
        """The tensors that change."""
        ...

    def change(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """What a tensor becomes, in its shape and dtype."""
        ...


Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and the parameter's name."""


def load_network(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: Quant = "none",
    pack: bool = False,
    progress: Progress | None = None,
    changes: Changes | None = None,
) -> HybridForCausalLM:
    """Build the network and read its weights.

    At the peak there are the weights as they stay, one parameter as it is stored, and what is read ahead.

    Args:
        spec: What to build.
        weight_files: The checkpoint's safetensors files, or the parts of its GGUF file.
        dtype: dtype of the parameters, except those that a layer keeps in float32 (``float32_parameters``).
        device: Where they go.
        quant: What the matrices become (``inference.modelling.quantisation``), except those that the files hold in
            codes of ours.
        pack: Pack matrices as soon as they are there; ``pack_weights`` finds what is left.
        progress: Called once per parameter.
        changes: What stored tensors become first; such parameters keep no codes of the files.

    Raises:
        CheckpointError: A tensor is missing or has the wrong shape, or a file is broken.
    """
    network = _on_meta_device(spec, HybridForCausalLM)
    _fill(
        network, spec, weight_files, dtype=dtype, device=device, quant=quant, pack=pack, progress=progress,
        changes=changes,
    )  # fmt: skip
    return network.eval()


def load_prediction_head(
    spec: PredictionHeadSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: Quant = "none",
    pack: bool = False,
) -> PredictionHead:
    """Build a model's head for multi-token prediction and read its weights; the arguments as in ``load_network``.

    Raises:
        CheckpointError: As there.
    """
    head = _on_meta_device(spec, PredictionHead)
    _fill(head, spec, weight_files, dtype=dtype, device=device, quant=quant, pack=pack)
    return head.eval()


def load_vision(
    spec: VisionSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    encoded: Sequence[EncodedTensor] = (),
) -> ImageEncoder:
    """Build the part of a model that sees and read its weights, which no option quantises.

    Args:
        encoded: How tensors of the files are decoded that hold codes.

    Raises:
        CheckpointError: As ``load_network``.
    """
    encoder = _on_meta_device(spec, ImageEncoder)
    backend = choose_backend(device, dtype)
    shapes = {name: parameter.shape for name, parameter in encoder.named_parameters()}
    with TensorFiles(weight_files, dequantised=dtype, encoded=encoded) as files, torch.inference_mode():
        parameters = [
            _Parameter(name, *_owner(encoder, name), source, shapes[name], None)
            for name, source in sorted(
                spec.parameters.items(), key=lambda item: min(map(files.position_of, stored_names(item[1])))
            )
        ]
        files.expect([_names_to_read(parameter) for parameter in parameters])
        for parameter in parameters:
            files.move()
            _load_parameter(files, backend, parameter, pack=False)
    return encoder.eval()


def _fill(
    network: nn.Module,
    spec: ModelSpec,
    weight_files: Sequence[Path],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    quant: Quant,
    pack: bool,
    progress: Progress | None = None,
    changes: Changes | None = None,
) -> None:
    """Read the weights of a network that is on the meta device."""
    backend = choose_backend(device, dtype)
    # Codes are rounded once, to what the network has or is quantised from.
    dequantised = dtype if quant in ("auto", "none") and dtype in _STORED else torch.float32
    if quant == "auto" and spec.encoded:
        _log_expanded(spec)
    with TensorFiles(weight_files, dequantised=dequantised, encoded=spec.encoded) as files, torch.inference_mode():
        parameters = _parameters(spec, network, files, quant, changes)
        packers = {
            number: packer
            for number, parameter in enumerate(parameters)
            if not (parameter.coded or parameter.is_changed)
            and (packer := _row_packer(files, backend, parameter, pack=pack)) is not None
        }
        stores = _code_sinks(backend, parameters)
        sinks: dict[int, PackedRows | CodeSink] = {**packers, **stores}
        files.expect([_names_to_read(parameter) for parameter in parameters], packers, stores)
        for number, parameter in enumerate(parameters):
            files.move()
            if progress is not None:
                progress(number / len(parameters), parameter.name)
            if number in sinks:
                files.finish()
                packed = sinks.pop(number).packed
                cast("Packable", parameter.owner).accept(parameter.leaf, packed, dtype, backend.device)
            else:
                _load_parameter(files, backend, parameter, pack=pack, changes=changes)
    for name, module in network.named_modules():
        if isinstance(module, NGramHash | TokenMixtureOfExperts):
            module.check_values(name)
    backend.bind(network)
    if progress is not None:
        progress(1.0, "")


def _code_sinks(backend: Backend, parameters: Sequence[_Parameter]) -> dict[int, CodeSink]:
    """What takes the parameters that stay in the codes of the files, by number."""
    return {
        number: backend.code_sink(parameter.shape, parameter.coded)
        for number, parameter in enumerate(parameters)
        if parameter.coded
    }


def _log_expanded(spec: ModelSpec) -> None:
    """Say which parameters don't stay in the codes that the files have."""
    coded = {*coded_parameters(spec, "auto"), *kept_kinds(spec)}
    encoded = {item.name for item in spec.encoded}
    shapes = spec.parameter_shapes()
    expanded = [
        name
        for name, source in spec.parameters.items()
        if name not in coded and not encoded.isdisjoint(source.tensor_names())
    ]
    if expanded:
        count = sum(math.prod(shapes[name]) for name in expanded)
        logger.info(
            "%d parameters (%.1f %% of the weights) become floats, as no product takes their codes: %s%s",
            len(expanded),
            100 * count / spec.num_parameters(),
            ", ".join(expanded[:3]),
            ", …" if len(expanded) > 3 else "",
        )


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter to load.

    Attributes:
        name: Full name in the network.
        owner, leaf: The module that has it, and its name there.
        source: What it is made of.
        shape: Its shape.
        kind: How it is quantised; None: not.
        is_kept: Whether the files hold its codes in int8 or int4.
        coded: The forms of its rows, if it stays in the codes of the files.
        is_changed: Whether a tensor of it is changed before it is put to use.
    """

    name: str
    owner: nn.Module
    leaf: str
    source: Source
    shape: torch.Size
    kind: Kind | None
    is_kept: bool = False
    coded: tuple[CodedRows, ...] = ()
    is_changed: bool = False


def _on_meta_device(spec: _Spec, build: Callable[[_Spec], _Network]) -> _Network:
    """The network on the meta device.

    Raises:
        MissingTensor: The spec names other parameters than the network has.
    """
    with torch.device("meta"):
        network = build(spec)
    odd = sorted(dict(network.named_parameters()).keys() ^ spec.parameters.keys())[:5]
    if odd:
        raise MissingTensor(f"the spec and the network disagree on the parameters {', '.join(odd)}.", param=odd[0])
    return network


def _parameters(
    spec: ModelSpec, network: nn.Module, files: TensorFiles, quant: Quant, changes: Changes | None
) -> list[_Parameter]:
    """All parameters in the order of the files: what lies together is read as fast as a file from end to end."""
    kept, coded, kinds = kept_kinds(spec), coded_parameters(spec, quant), quantised_kinds(spec, quant)
    changed = set() if changes is None else set(changes.names)
    is_changed = {name: not changed.isdisjoint(source.tensor_names()) for name, source in spec.parameters.items()}
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    order = sorted(spec.parameters.items(), key=lambda item: min(map(files.position_of, stored_names(item[1]))))
    return [
        _Parameter(
            name,
            *_owner(network, name),
            source,
            shapes[name],
            kinds[name],
            is_kept=name in kept and not is_changed[name],
            coded=() if is_changed[name] else coded.get(name, ()),
            is_changed=is_changed[name],
        )
        for name, source in order
    ]


def _row_packer(files: TensorFiles, backend: Backend, parameter: _Parameter, *, pack: bool) -> PackedRows | None:
    """What packs a parameter while it is read; None: it is packed later, or not at all."""
    if parameter.is_kept:
        return None
    names = joined_names(parameter.source, tuple(parameter.shape), files.shape_of)
    dtypes = {files.dtype_of(name) for name in names or ()}
    if names is None or len(dtypes) != 1:
        return None
    return backend.row_packer(
        parameter.owner,
        parameter.leaf,
        parameter.shape,
        stored=dtypes.pop(),
        parts=[files.shape_of(name) for name in names],
        kind=parameter.kind,
        pack=pack,
    )


def _load_parameter(
    files: TensorFiles, backend: Backend, parameter: _Parameter, *, pack: bool, changes: Changes | None = None
) -> None:
    """Read a parameter, quantise or pack it, and put it into its layer."""
    owner, leaf, shape = parameter.owner, parameter.leaf, parameter.shape
    if parameter.is_kept:
        packed = backend.keep_codes(_read_codes(files, parameter))
        cast("Packable", owner).accept(leaf, packed, backend.dtype, backend.device)
        return
    if parameter.kind is not None:
        value = _assemble(files, parameter.source, shape, parameter.name, None, changes).to(backend.device)
        packed = backend.quantise(value, parameter.kind)
        cast("Packable", owner).accept(leaf, packed, backend.dtype, backend.device)
        return
    dtype = torch.float32 if leaf in getattr(owner, "float32_parameters", ()) else backend.dtype
    if leaf in getattr(owner, "integer_parameters", ()):
        dtype = torch.int64
    value = _assemble(files, parameter.source, shape, parameter.name, dtype, changes).to(backend.device)
    setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
    if pack and not any(part.is_meta for part in owner.parameters()):
        backend.pack(owner)
    if value.device.type == "cpu" and _is_used(owner, leaf, value):
        files.keep()


def _read_codes(files: TensorFiles, parameter: _Parameter) -> PlainQuantised:
    """Codes and scales of a parameter in int8 or int4 as the files hold them."""
    assert parameter.kind is not None
    form, inputs = OWN_FORMS[parameter.kind], parameter.shape[-1]
    sizes = (code_bytes(inputs, form.bits), -(-inputs // form.group))
    dtypes = (torch.int8 if parameter.kind == "int8" else torch.uint8, torch.bfloat16)
    values, scales = (
        _assemble(
            files,
            Source(tuple(Piece(piece.name + part) for piece in parameter.source.pieces), parameter.source.num_experts),
            torch.Size((*parameter.shape[:-1], size)),
            parameter.name,
            dtype,
        )
        for part, size, dtype in zip((CODES, SCALES), sizes, dtypes, strict=True)
    )
    return PlainQuantised(values, scales, parameter.kind, inputs)


def _names_to_read(parameter: _Parameter) -> list[str]:
    """The tensors that are needed together for a parameter."""
    names = stored_names(parameter.source)
    return [name + part for part in (CODES, SCALES) for name in names] if parameter.is_kept else names


def _is_used(owner: nn.Module, leaf: str, value: torch.Tensor) -> bool:
    """Whether a parameter still is this tensor, and not packed by now."""
    parameter: nn.Parameter = getattr(owner, leaf)
    return parameter.numel() > 0 and parameter.data_ptr() == value.data_ptr()


def _owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return network.get_submodule(path), leaf


def _assemble(
    files: TensorFiles,
    source: Source,
    shape: torch.Size,
    name: str,
    dtype: torch.dtype | None,
    changes: Changes | None = None,
) -> torch.Tensor:
    """One parameter of the wanted shape.

    Args:
        dtype: Of the result. None: bfloat16 where everything is stored so, else float32.

    Returns:
        Perhaps in the memory of the files, which use it again unless they are told to keep it.
    """
    changed = set() if changes is None else set(changes.names)
    joined = _joined(files, source, shape) if changed.isdisjoint(source.tensor_names()) else None
    if joined is not None and (joined.dtype == dtype or (dtype is None and joined.dtype in _STORED)):
        return joined
    experts: list[int | None] = [None] if source.num_experts is None else list(range(source.num_experts))
    out = None if dtype is None else mapped_zeros(shape, dtype)
    for expert in experts:
        parts = [_read_piece(files, piece, expert, changes) for piece in source.pieces]
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
    names = joined_names(source, tuple(shape), files.shape_of)
    flat = None if names is None else files.read_joined(names)
    return None if flat is None else flat.view(shape)


def _read_piece(files: TensorFiles, piece: Piece, expert: int | None, changes: Changes | None) -> torch.Tensor:
    name = piece.name if expert is None else piece.name.replace("{e}", str(expert))
    value = files.read(name)
    if changes is not None and name in changes.names:
        value = changes.change(name, value)
    if piece.parts is not None:
        value = value.reshape(piece.parts, -1, *value.shape[1:])
    if piece.index is not None:
        value = value[expert if piece.index == -1 and expert is not None else piece.index]
    if piece.transpose:
        value = value.transpose(-1, -2)
    value = take_rows(piece, value)
    return value if piece.reshape is None else value.reshape(piece.reshape)
