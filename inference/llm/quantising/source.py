"""Read the tensors of a checkpoint that is quantised, whether its files hold numbers or codes.

Tensors in codes are those of GGUF files and of other programs' safetensors. A weight that isn't rounded anew keeps its
codes, if products take them (``stored_form``); their scales are rounded to float16 or bfloat16, as a load of the source
rounds them, but for those of Q2_K and Q3_K, which a load keeps exact. All other codes become floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import UnsupportedFormat
from inference.llm.checkpoint_writing import SPELLINGS, Entry, SourceFiles, computed_entry, stored_entry
from inference.modelling.encodings.blazr import CODES, OFFSETS, SCALES, STORED_DTYPES
from inference.modelling.families.config import TensorInfo
from inference.modelling.gguf.ggjt import has_ggml_suffix
from inference.modelling.layers.code_search import scales_dtype
from inference.modelling.layers.coded import PlainCoded
from inference.modelling.quantisation import Form, code_bytes, coded_bytes, stored_form
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Shape
from inference.modelling.weights.files import TensorFiles

NUM_COLUMNS = 8
"""A matrix in codes has a multiple of so many columns: then the codes of every form fill whole bytes."""
_MATRIX_AXES = (2, 3)


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor as the checkpoint had it before it was quantised, if it was.

    Attributes:
        shape: Its shape.
        dtype: What it is written in where it isn't quantised, in safetensors' spelling; of kept codes, what they count
            as.
        form: The form of its codes, which are kept where it isn't rounded anew; None: it is written in numbers.
    """

    shape: Shape
    dtype: str
    size_bytes: int
    form: Form | None = None


class SourceTensors:
    """All tensors of a checkpoint that a written one has.

    Attributes:
        tensors: By name, in the order of the files or of the network.

    Args:
        spec: Specification of the checkpoint.
        weight_files: Its safetensors files, or the parts of its GGUF file.
        source: Its headers.

    Raises:
        UnsupportedFormat: ``blazr quantise`` wrote it.
        CheckpointError: A file can't be read.
    """

    def __init__(self, spec: ModelSpec, weight_files: Sequence[Path], source: SourceFiles) -> None:
        self._spec, self._paths, self._source = spec, list(weight_files), source
        if any(item.coding == "blazr" for item in spec.encoded):
            raise UnsupportedFormat(
                "the checkpoint was written by blazr quantise; quantise the one that it was made from, so that nothing "
                "is rounded twice.",
                param="model",
            )
        self.in_codes = is_in_codes(spec, weight_files)
        self.tensors: Mapping[str, SourceTensor]
        if self.in_codes:
            self.tensors = self._decoded()
        else:
            self.tensors = {name: _plain(info) for name, info in source.tensors.items()}

    @contextmanager
    def entries(self, names: Sequence[str]) -> Iterator[list[Entry]]:
        """Open the files, and yield entries of tensors that aren't rounded anew: copies, kept codes, or floats."""
        if not self.in_codes:
            yield [stored_entry(self._source.directory, name, self._source.tensors[name]) for name in names]
            return
        with self._files() as files:
            # The parts of a tensor are written one after the other.
            codes_of = lru_cache(maxsize=1)(files.read_codes)
            yield [entry for name in names for entry in _read_entries(files, name, self.tensors[name], codes_of)]

    def _files(self) -> TensorFiles:
        return TensorFiles(self._paths, dequantised=TORCH_DTYPES[self._spec.dtype], encoded=self._spec.encoded)

    def _decoded(self) -> dict[str, SourceTensor]:
        """Return the tensors that the network reads; what else files in codes hold is beside the codes."""
        items = {item.name: item for item in self._spec.encoded}
        found: dict[str, SourceTensor] = {}
        with self._files() as files:
            for name in _names_read(self._spec):
                item, shape, dtype = items.get(name), files.shape_of(name), files.dtype_of(name)
                stored = None if item is None or item.is_permuted else stored_form(item)
                form = None if stored is None else stored.without_factors
                if form is not None and len(shape) in _MATRIX_AXES and shape[-1] % NUM_COLUMNS == 0:
                    counts_as = STORED_DTYPES[self._spec.dtype]
                    found[name] = SourceTensor(shape, counts_as, coded_bytes(shape, form), form)
                else:
                    found[name] = SourceTensor(shape, SPELLINGS[dtype], math.prod(shape) * dtype.itemsize)
        return found


def is_in_codes(spec: ModelSpec, weight_files: Sequence[Path]) -> bool:
    """Whether tensors have to be decoded, or put together anew, to be written in safetensors files."""
    return bool(spec.encoded) or any(has_ggml_suffix(path.name) for path in weight_files)


def kept_members(form: Form) -> dict[str, object]:
    """Return what ``quantization_config`` states of a form of kept codes."""
    members: dict[str, object] = {"bits": form.bits, "group": form.group, "scales": form.scales}
    if form.zero:
        members["zero"] = form.zero
    if form.levels:
        members["levels"] = list(form.levels)
    for name in ("has_offset", "is_float"):
        if getattr(form, name):
            members[name] = True
    return members


def _names_read(spec: ModelSpec) -> list[str]:
    read = list(spec.parameters.values())
    for part in (spec.prediction_head, spec.vision):
        read += [] if part is None else part.parameters.values()
    return list(dict.fromkeys(name for source in read for name in source.tensor_names()))


def _plain(info: TensorInfo) -> SourceTensor:
    return SourceTensor(info.shape, info.dtype, info.end - info.begin)


def _read_entries(
    files: TensorFiles, name: str, tensor: SourceTensor, codes_of: Callable[[str, Form], PlainCoded]
) -> Iterator[Entry]:
    """Yield the entries of a tensor: its values, or its codes, scales and offsets."""
    shape, form = tensor.shape, tensor.form
    if form is None:
        yield computed_entry(name, files.dtype_of(name), shape, lambda: files.read_alone(name))
        return

    def offsets() -> torch.Tensor:
        found = codes_of(name, form).offsets
        assert found is not None
        return found

    outer, dtype = shape[:-1], scales_dtype(form)
    bytes_of_row, groups = code_bytes(shape[-1], form.bits), -(-shape[-1] // form.group)
    yield computed_entry(name + CODES, torch.uint8, (*outer, bytes_of_row), lambda: codes_of(name, form).planes)
    yield computed_entry(name + SCALES, dtype, (*outer, groups), lambda: codes_of(name, form).scales)
    if form.has_offset:
        yield computed_entry(name + OFFSETS, dtype, (*outer, groups), offsets)
