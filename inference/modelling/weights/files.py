"""TensorFiles: the tensors of safetensors or GGUF files, read in pieces, before they are asked for.

A group of tensors either lies in a buffer until the next one is asked for, or goes piece by piece to a ``RowSink``,
which puts it into its final form in the readers' threads, so that its stored form is never there as a whole.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from inference.errors import CorruptCheckpoint, MissingTensor, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.gguf.ggjt import has_ggml_suffix
from inference.modelling.layers.coded import Codes, PlainCoded, PlainStore
from inference.modelling.mapped import LEAST_BYTES, mapped_zeros
from inference.modelling.quantisation import Form
from inference.modelling.weights.encoded_reader import encoded_readers
from inference.modelling.weights.gguf_reader import open_gguf
from inference.modelling.weights.stored_tensor import CodedPlace, StoredTensor

NUM_READERS = 3
"""Least number, and at most ``MAX_READERS``: one more than there are threads to compute, since readers also pack, and
one of them waits for the disk (docs/performance.md)."""
MAX_READERS = 16

PIECE_BYTES = 1 << 20
CODE_ROWS = 32
"""Rows of codes come in multiples of it."""
AHEAD_BYTES = 64 << 20
"""What is read while a parameter is put into its final form; one parameter may be more."""

SPARE_BYTES = 128 << 20
"""Buffers that wait for the next parameter of their size: new memory has to be zeroed by the system."""

_ALIGNMENT = 64
_NOTHING = torch.empty(0, dtype=torch.uint8)
DTYPES_BY_SPELLING = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
"""safetensors' names of dtypes to torch's."""


@dataclass(frozen=True, slots=True)
class _PlainPlace:
    """Where the bytes of a tensor are that is read as it is stored; ``stored`` None: its dtype is none of torch's."""

    file: str
    descriptor: int
    stored: torch.dtype | None
    shape: tuple[int, ...]
    start: int
    size: int

    def fill(self, target: memoryview, begin: int) -> None:
        """Read the bytes of a tensor from ``begin`` on."""
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self.descriptor, [target[done:]], self.start + begin + done)
            except OSError as error:
                raise CorruptCheckpoint(f"{self.file} can't be read: {error.strerror}.", param=self.file) from None
            if not count:
                raise CorruptCheckpoint(f"{self.file} ends before its tensors do.", param=self.file)
            done += count


class CodeSink(Protocol):
    """Takes rows of codes of a group's tensors, which lie one below the other."""

    def take(self, rows: Codes, first: int) -> None:
        """Take rows; called by several threads, in any order.

        Args:
            rows: A multiple of ``CODE_ROWS`` of them, or the last ones of a tensor.
            first: The number of the first one in the group.
        """
        ...


class RowSink(Protocol):
    """Takes the bytes of a group's tensors, which lie one behind the other, piece by piece."""

    @property
    def piece_bytes(self) -> int:
        """Every piece of a tensor has so many, except its last one."""
        ...

    def take(self, values: torch.Tensor, begin: int) -> None:
        """Take a piece; called by several threads, in any order.

        Args:
            values: (n,) uint8, which is written again afterwards.
            begin: Where it begins in the group.
        """
        ...


@dataclass(slots=True)
class _Group:
    """Tensors on their way that are needed together.

    Attributes:
        names: As they were asked for.
        starts: Where each begins in the buffer: one right behind the other, if all are of one dtype.
        buffer: Their bytes; empty if they go to a sink.
        pieces: What fills it.
        num_bytes: Of the tensors.
    """

    names: tuple[str, ...]
    starts: dict[str, int]
    buffer: torch.Tensor
    pieces: list[Future[None]]
    num_bytes: int


class TensorFiles:
    """Read access to the tensors of a checkpoint, group by group, for one thread. A context manager.

    Args:
        files: safetensors files, a ggjt file, or the parts of one GGUF file in order.
        groups: See ``expect``.
        dequantised: dtype of what is read of tensors that the files have in codes.
        encoded: Which tensors safetensors files have in codes.
    """

    def __init__(
        self,
        files: Sequence[Path],
        groups: Iterable[Sequence[str]] = (),
        *,
        dequantised: torch.dtype = torch.float32,
        encoded: Sequence[EncodedTensor] = (),
    ) -> None:
        self._paths = list(files)
        self._dequantised, self._encoded = dequantised, tuple(encoded)
        self._groups = [tuple(names) for names in groups]
        self._places: dict[str, StoredTensor] = {}
        self._closing = ExitStack()
        self._buffers = _Buffers()
        self._num_prefetched = 0
        self._coming: deque[_Group] = deque()
        self._now = _Group((), {}, _NOTHING, [], 0)
        self._sinks: dict[int, RowSink] = {}
        self._code_sinks: dict[int, CodeSink] = {}
        self._own = threading.local()
        self._is_kept = True
        self._most_ahead = 0

    def __enter__(self) -> TensorFiles:
        try:
            if self._paths and has_ggml_suffix(self._paths[0].name):
                self._places |= open_gguf(self._paths, self._closing, self._dequantised)
            else:
                for path in self._paths:
                    self._open(path)
                self._places |= encoded_readers(self._encoded, self._places, self._dequantised)
        except BaseException:
            self._closing.close()
            raise
        self.expect(self._groups)
        count = min(max(NUM_READERS, torch.get_num_threads() + 1), MAX_READERS)
        self._readers = ThreadPoolExecutor(count, thread_name_prefix="read-weights")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._readers.shutdown(cancel_futures=True)  # before their files go
        self._coming.clear()
        self._closing.close()

    def expect(
        self,
        groups: Iterable[Sequence[str]],
        sinks: Mapping[int, RowSink] | None = None,
        code_sinks: Mapping[int, CodeSink] | None = None,
    ) -> None:
        """Say what is going to be read, before the first ``move``.

        Args:
            groups: Names of the tensors that are needed together, in the order in which ``move`` comes to them.
            sinks: Where groups go that don't wait in a buffer, by their number.
            code_sinks: Where groups go whose codes are kept, alike.
        """
        self._groups = [tuple(names) for names in groups]
        self._sinks, self._code_sinks = dict(sinks or {}), dict(code_sinks or {})
        sizes = [sum(self._places[name].size for name in names if name in self._places) for names in self._groups]
        self._most_ahead = min(AHEAD_BYTES, max(sizes, default=0))

    def move(self) -> None:
        """Go on to the next group, and ask for what comes after it. What the one before had read is gone."""
        if not self._coming:
            self._prefetch_next()
        following = self._coming.popleft()
        if following.buffer is not self._now.buffer and not self._is_kept:
            self._buffers.give_back(self._now.buffer)
        self._now, self._is_kept = following, False
        while self._num_prefetched < len(self._groups) and self._num_bytes_ahead() < self._most_ahead:
            self._prefetch_next()

    def finish(self) -> None:
        """Wait until the group's sink has all of it.

        Raises:
            CorruptCheckpoint: The file ended before its tensors did, or the disk failed.
        """
        self._wait()

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            MissingTensor: No file has it.
        """
        return self._place(name).shape

    def size_of(self, name: str) -> int:
        """Bytes of what is read of a tensor.

        Raises:
            MissingTensor: No file has it.
        """
        return self._place(name).size

    def position_of(self, name: str) -> tuple[str, int]:
        """Name of its file, and where it begins there.

        Raises:
            MissingTensor: No file has it.
        """
        place = self._place(name)
        return place.file, place.start

    def dtype_of(self, name: str) -> torch.dtype:
        """Its dtype as stored.

        Raises:
            MissingTensor: No file has it.
            UnsupportedFormat: Its dtype is none of torch's.
        """
        return _dtype_of(name, self._place(name))

    def read(self, name: str) -> torch.Tensor:
        """A tensor of the group, until the next ``move``.

        Raises:
            MissingTensor: No file has it.
            UnsupportedFormat: Its dtype is none of torch's.
            CorruptCheckpoint: The file ended before the tensor did, or the disk failed.
        """
        place = self._place(name)
        dtype = _dtype_of(name, place)
        self._wait()
        start = self._now.starts[name]
        return self._now.buffer[start : start + place.size].view(dtype).view(place.shape)

    def read_joined(self, names: Sequence[str]) -> torch.Tensor | None:
        """All tensors of the group one behind the other, flat, until the next ``move``.

        Args:
            names: All of the group, each once. None is returned if they aren't, or are of several dtypes.

        Raises:
            MissingTensor, UnsupportedFormat, CorruptCheckpoint: As ``read``.
        """
        dtypes = {_dtype_of(name, self._place(name)) for name in names}
        if len(dtypes) != 1 or tuple(names) != self._now.names or len(set(names)) != len(names):
            return None
        self._wait()
        return self._now.buffer.view(dtypes.pop())

    def read_alone(self, name: str) -> torch.Tensor:
        """Read a tensor outside of all groups; the values are the caller's.

        Raises:
            MissingTensor, UnsupportedFormat, CorruptCheckpoint: As ``read``.
        """
        place = self._place(name)
        dtype, content = _dtype_of(name, place), torch.empty(place.size, dtype=torch.uint8)
        place.fill(memoryview(cast("Any", content.numpy())), 0)
        return content.view(dtype).view(place.shape)

    def read_values(self, name: str, first: int, count: int) -> torch.Tensor:
        """Read some values of a tensor outside of all groups, in row-major order.

        Raises:
            MissingTensor, UnsupportedFormat, CorruptCheckpoint: As ``read``.
        """
        place = self._place(name)
        dtype = _dtype_of(name, place)
        content = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
        place.fill(memoryview(cast("Any", content.numpy())), first * dtype.itemsize)
        return content.view(dtype)

    def read_codes(self, name: str, form: Form) -> PlainCoded:
        """Read the codes of a tensor outside of all groups, packed in rows.

        Args:
            name: A tensor that the files have in codes of a form.
            form: What ``stored_form`` says of it.

        Raises:
            MissingTensor, CorruptCheckpoint: As ``read``.
        """
        place = self._place(name)
        assert isinstance(place, CodedPlace), name
        store = PlainStore(place.shape, form)
        rows, each = math.prod(place.shape[:-1]), _rows_at_once(place)
        for first in range(0, rows, each):
            store.put(place.codes(first, min(each, rows - first)), first)
        return store.packed

    def keep(self) -> None:
        """What was read of the group belongs to the caller."""
        self._is_kept = True

    def _place(self, name: str) -> StoredTensor:
        place = self._places.get(name)
        if place is None:
            raise MissingTensor(f"tensor {name} is missing from the checkpoint.", param=name)
        return place

    def _num_bytes_ahead(self) -> int:
        return sum(group.num_bytes for group in self._coming)

    def _wait(self) -> None:
        for piece in self._now.pieces:
            piece.result()
        self._now.pieces.clear()

    def _prefetch_next(self) -> None:
        names, sink = self._groups[self._num_prefetched], self._sinks.get(self._num_prefetched)
        code_sink = self._code_sinks.get(self._num_prefetched)
        self._num_prefetched += 1
        if code_sink is not None:
            self._coming.append(self._stream_codes(names, code_sink))
            return
        if sink is not None:
            self._coming.append(self._stream(names, sink))
            return
        last = self._coming[-1] if self._coming else self._now
        if names == last.names:  # several parameters are parts of one tensor
            self._coming.append(last)
            return
        places = {name: self._places[name] for name in names if name in self._places}
        step = 1 if len({place.stored for place in places.values()}) == 1 else _ALIGNMENT
        sizes = [-(-place.size // step) * step for place in places.values()]
        starts = dict(zip(places, itertools.accumulate(sizes, initial=0), strict=False))
        buffer = self._buffers.take(sum(sizes))
        target = memoryview(cast("Any", buffer.numpy()))
        pieces = [
            self._readers.submit(
                place.fill, target[starts[name] :][begin : min(begin + PIECE_BYTES, place.size)], begin
            )
            for name, place in places.items()
            for begin in range(0, place.size, PIECE_BYTES)
        ]
        self._coming.append(_Group(names, starts, buffer, pieces, len(buffer)))

    def _stream(self, names: tuple[str, ...], sink: RowSink) -> _Group:
        """A group on its way to a sink, which takes each piece in the thread that read it."""
        pieces: list[Future[None]] = []
        start = 0
        for place in map(self._place, names):
            for begin in range(0, place.size, sink.piece_bytes):
                size = min(sink.piece_bytes, place.size - begin)
                pieces.append(self._readers.submit(self._pass_on, place, begin, size, sink, start + begin))
            start += place.size
        return _Group((), {}, _NOTHING, pieces, start)

    def _stream_codes(self, names: tuple[str, ...], sink: CodeSink) -> _Group:
        """A group whose codes go to a sink, in the thread that read them."""
        pieces: list[Future[None]] = []
        start = num_bytes = 0
        for name in names:
            place = self._place(name)
            assert isinstance(place, CodedPlace), name
            rows = math.prod(place.shape[:-1])
            each = _rows_at_once(place)
            pieces += [
                self._readers.submit(_pass_codes, place, begin, min(each, rows - begin), sink, start + begin)
                for begin in range(0, rows, each)
            ]
            start += rows
            num_bytes += place.size
        return _Group((), {}, _NOTHING, pieces, num_bytes)

    def _pass_on(self, place: StoredTensor, begin: int, size: int, sink: RowSink, at: int) -> None:
        buffer: torch.Tensor | None = getattr(self._own, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._own.buffer = torch.empty(size, dtype=torch.uint8)
        piece = buffer[:size]
        place.fill(memoryview(cast("Any", piece.numpy())), begin)
        sink.take(piece, at)

    def _open(self, path: Path) -> None:
        """Take in the header of a file.

        Source of the layout: https://huggingface.co/docs/safetensors/index#format
        """
        try:
            with safe_open(path, framework="pt") as handle:  # checks the header and every extent
                names = set(handle.keys())
            file = self._closing.enter_context(path.open("rb", buffering=0))
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        except (SafetensorError, OSError, ValueError) as error:
            raise CorruptCheckpoint(f"{path.name} can't be read as safetensors: {error}.", param=path.name) from None
        for name in names:
            entry = header[name]
            begin, end = entry["data_offsets"]
            start, size = 8 + length + begin, end - begin
            stored = DTYPES_BY_SPELLING.get(entry["dtype"])
            shape = tuple(entry["shape"])
            self._places[name] = _PlainPlace(path.name, file.fileno(), stored, shape, start, size)


class _Buffers:
    """Memory for reading into. The layers' parameters have equal sizes, so what one leaves fits the next.

    Outside of the allocator, where weights would take the place of what is freed, in small pages by then.
    """

    def __init__(self) -> None:
        self._spare: deque[torch.Tensor] = deque()

    def take(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8, with any values."""
        for number, buffer in enumerate(self._spare):
            if len(buffer) == num_bytes:
                del self._spare[number]
                return buffer
        return mapped_zeros((num_bytes,), torch.uint8)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody looks at it any more."""
        if len(buffer) >= LEAST_BYTES:
            self._spare.append(buffer)
            while sum(map(len, self._spare)) > SPARE_BYTES:
                self._spare.popleft()


def _rows_at_once(place: CodedPlace) -> int:
    return max(CODE_ROWS, PIECE_BYTES // max(1, place.shape[-1]) // CODE_ROWS * CODE_ROWS)


def _pass_codes(place: CodedPlace, begin: int, count: int, sink: CodeSink, first: int) -> None:
    sink.take(place.codes(begin, count), first)


def _dtype_of(name: str, place: StoredTensor) -> torch.dtype:
    dtype = place.stored
    if dtype is None:
        raise UnsupportedFormat(f"tensor {name} has a dtype that can't be read.", param=name)
    return dtype
