"""GgufPlace: a tensor of a GGUF file, read piece by piece as the checkpoint had it before conversion.

Stored blocks become values, and what the converter did to rows and values is undone, a few rows at a time: neither
the stored nor the final form of a tensor has to be in memory as a whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from inference.errors import CorruptCheckpoint
from inference.modelling.gguf.architectures import read_checkpoint
from inference.modelling.gguf.block_types import BLOCK_TYPES
from inference.modelling.gguf.tensors import CheckpointTensor, Segment
from inference.modelling.layers.coded import Codes
from inference.modelling.weights.block_codes import block_codes
from inference.modelling.weights.block_values import PLAIN_DTYPES, dequantise

CHUNK_VALUES = 1 << 16
"""Values that are computed at once: what the formulas make on the way stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class GgufPlace:
    """Where a tensor is, and how it is read.

    Attributes:
        file: Name of the (first) file.
        tensor: How it is put together.
        descriptors: Open files, by the numbers of the parts.
        stored: dtype of what is read.
    """

    file: str
    tensor: CheckpointTensor
    descriptors: Sequence[int]
    stored: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As the checkpoint had it."""
        return self.tensor.shape

    @property
    def start(self) -> int:
        """Its first byte in the file."""
        return self.tensor.segments[0].begin

    @property
    def size(self) -> int:
        """Bytes of what is read."""
        return sum(segment.rows * segment.columns for segment in self.tensor.segments) * self.stored.itemsize

    def fill(self, target: memoryview, begin: int) -> None:
        """Read values.

        Args:
            target: As many bytes as are read: whole values.
            begin: Their first byte in the tensor.

        Raises:
            CorruptCheckpoint: The file ended before, or the disk failed.
        """
        out = torch.frombuffer(target, dtype=self.stored)
        first, done = begin // self.stored.itemsize, 0
        columns = _width(self.tensor.segments[0])
        while done < len(out):
            row, within = divmod(first + done, columns)
            count = max(1, CHUNK_VALUES // columns)
            if self.tensor.head_rows:  # up to the end of a head, whose rows are computed together
                end = row + max(count, self.tensor.head_rows)
                count = end // self.tensor.head_rows * self.tensor.head_rows - row
            count = min(count, -(-(within + len(out) - done) // columns))
            values = self._rows(row, count).flatten()[within : within + len(out) - done]
            out[done : done + len(values)].copy_(values)
            done += len(values)

    def _rows(self, first: int, count: int) -> torch.Tensor:
        """(n, columns) from row ``first`` on: at least one row, at most ``count``, of one run of rows."""
        start = 0
        for run in self._runs():
            rows = len(run) * (run[0].columns if run[0].transposed else run[0].rows)
            if first < start + rows:
                local = first - start
                return self._undone(_in_turns(self._segment_rows, run, local, min(count, rows - local)))
            start += rows
        raise AssertionError("rows behind the tensor's end")

    def _runs(self) -> list[tuple[Segment, ...]]:
        """The segments one by one, or those in pairs whose rows take turns."""
        each = 2 if self.tensor.takes_turns else 1
        return [self.tensor.segments[number : number + each] for number in range(0, len(self.tensor.segments), each)]

    def codes(self, first: int, count: int) -> Codes:
        """Rows in codes, for a tensor that ``CheckpointTensor.code_type`` names a type of.

        Raises:
            CorruptCheckpoint: The file ended before, or the disk failed.
        """
        found: list[torch.Tensor] = []
        factors: list[torch.Tensor] = []
        start = 0
        for run in self._runs():
            rows = len(run) * run[0].rows
            begin, end = max(first, start), min(first + count, start + rows)
            if begin < end:
                found.append(_in_turns(self._stored_rows, run, begin - start, end - begin))
                factors.append(_in_turns(self._factors, run, begin - start, end - begin))
            start += rows
        kind = BLOCK_TYPES[self.tensor.segments[0].type]
        codes = block_codes(torch.cat(found).view(-1, kind.num_bytes), kind, count)
        if self.tensor.keeps_blocks:
            return codes
        codes, factor = codes.without_factors(), torch.cat(factors)
        offsets = None if codes.offsets is None else self._columns(codes.offsets * factor)
        scales = self._columns(codes.scales * factor)
        return replace(codes, codes=self._columns(codes.codes), scales=scales, offsets=offsets)

    def _columns(self, values: torch.Tensor) -> torch.Tensor:
        """(rows, n · heads) with the heads in the checkpoint's order."""
        repeats, heads = self.tensor.column_heads
        if repeats == 1:
            return values
        return values.view(len(values), repeats, heads, -1).transpose(1, 2).reshape(values.shape)

    def _segment_rows(self, segment: Segment, first: int, count: int) -> torch.Tensor:
        """(count, columns), float32 or as the file has it."""
        if segment.transposed:
            values = _values(self._raw_rows(segment, 0, segment.rows), segment).T[first : first + count]
        else:
            values = _values(self._stored_rows(segment, first, count), segment)
        return values if segment.factor is None else values.float() * self._factor(segment)

    def _factors(self, segment: Segment, first: int, count: int) -> torch.Tensor:
        """(count, 1): by what the values of rows are multiplied."""
        return torch.full((count, 1), self._factor(segment))

    def _factor(self, segment: Segment) -> float:
        """By what the stored values are multiplied."""
        if segment.factor is None:
            return 1.0
        part, place = segment.factor
        data = bytearray(4)
        self._read_at(memoryview(data), part, place)
        return float(struct.unpack("<f", data)[0])

    def _stored_rows(self, segment: Segment, first: int, count: int) -> torch.Tensor:
        """(count, bytes of a row) uint8, in the checkpoint's order."""
        heads = self.tensor.head_rows
        if not heads:
            return self._raw_rows(segment, first, count)
        # Neighbouring pairs back into two halves, for all heads that the rows are part of.
        begin = first // heads * heads
        end = -(-(first + count) // heads) * heads
        pairs = self._raw_rows(segment, begin, end - begin).view(-1, heads // 2, 2, segment.row_bytes)
        return pairs.transpose(1, 2).reshape(end - begin, segment.row_bytes)[first - begin : first - begin + count]

    def _raw_rows(self, segment: Segment, first: int, count: int) -> torch.Tensor:
        """(count, bytes of a row) uint8, in the file's order."""
        data = bytearray(count * segment.row_bytes)
        self._read_at(memoryview(data), segment.part, segment.begin + first * segment.row_bytes)
        return torch.frombuffer(data, dtype=torch.uint8).view(count, segment.row_bytes)

    def _undone(self, values: torch.Tensor) -> torch.Tensor:
        if self.tensor.folded == "plus_one":
            return values.float() - 1
        if self.tensor.folded == "negative_exp":
            return torch.log(-values.float())
        if self.tensor.folded == "exp":
            return torch.log(values.float())
        return self._columns(values)

    def _read_at(self, target: memoryview, part: int, begin: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self.descriptors[part], [target[done:]], begin + done)
            except OSError as error:
                raise CorruptCheckpoint(f"{self.file} can't be read: {error.strerror}.", param=self.file) from None
            if not count:
                raise CorruptCheckpoint(f"{self.file} ends before its tensors do.", param=self.file)
            done += count


def open_gguf(paths: Sequence[Path], closing: ExitStack, dequantised: torch.dtype) -> dict[str, GgufPlace]:
    """All tensors of a GGUF file under the names that they had.

    Args:
        paths: Its parts, in order.
        closing: Closes the files.
        dequantised: dtype of what is computed from codes; numbers keep the dtype that they are stored in.

    Raises:
        CheckpointError: As ``read_checkpoint``, or a file can't be opened.
    """
    checkpoint = read_checkpoint(paths)
    try:
        descriptors = [closing.enter_context(path.open("rb", buffering=0)).fileno() for path in paths]
    except OSError as error:
        raise CorruptCheckpoint(f"{paths[0].name} can't be opened: {error.strerror}.", param=paths[0].name) from None
    return {
        name: GgufPlace(paths[tensor.segments[0].part].name, tensor, descriptors, _stored(tensor, dequantised))
        for name, tensor in checkpoint.tensors.items()
    }


def _in_turns(
    read: Callable[[Segment, int, int], torch.Tensor], run: tuple[Segment, ...], first: int, count: int
) -> torch.Tensor:
    """(count, …): rows of a run of segments, which take turns; ``read`` gives rows of one segment."""
    if len(run) == 1:
        return read(run[0], first, count)
    begin, end = first // len(run), -(-(first + count) // len(run))
    rows = torch.stack([read(segment, begin, end - begin) for segment in run], 1).flatten(0, 1)
    return rows[first - begin * len(run) :][:count]


def _values(raw: torch.Tensor, segment: Segment) -> torch.Tensor:
    """(rows, bytes of a row) to (rows, columns), float32 or as the file has it."""
    kind = BLOCK_TYPES[segment.type]
    plain = PLAIN_DTYPES.get(kind.name)
    if plain is not None:
        return raw.contiguous().view(plain)
    return dequantise(raw.reshape(-1, kind.num_bytes), kind).view(-1, segment.columns)


def _width(segment: Segment) -> int:
    return segment.rows if segment.transposed else segment.columns


def _stored(tensor: CheckpointTensor, dequantised: torch.dtype) -> torch.dtype:
    """dtype of what is read of a tensor."""
    if tensor.folded:
        return torch.float32
    if any(segment.factor for segment in tensor.segments):
        return dequantised
    kinds = {BLOCK_TYPES[segment.type].name for segment in tensor.segments}
    plain = PLAIN_DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
    return plain or dequantised
