"""Decode steps replayed from CUDA graphs: one launch instead of hundreds.

A step that only decodes runs the same kernels with the same addresses whatever the tokens are, once its inputs lie
in fixed buffers and its rows are padded to one of a few numbers. So each number is captured once, at the start, and
a step is: fill the buffers, copy them over, replay. Steps with prefill chunks run as they always did.

What a captured forward may not do: wait for the device, or take a shape or an address from the step. The layers'
device paths (``inference.modelling.backends.triton.forms``) keep to that; nothing else is captured: a network without
them runs eagerly, as its attention gathers as many columns as the longest context has.

Padding rows have context length 0, token 0 and the scratch slots. The kernels neither read nor write scratch; layers
that advance their state in PyTorch do, so theirs is zeroed again within the graph.

A model may be loaded, and captured, while another one serves in another thread of the process: a capture minds its
own thread's calls only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch

from inference.modelling.forward_batch import DecodeTables, ForwardBatch, LayerState
from inference.modelling.layer_specs import Mamba1Spec, Mamba3Spec
from inference.modelling.spec import ModelSpec

Int64Array = npt.NDArray[np.int64]
Forward = Callable[[ForwardBatch, Sequence[LayerState]], torch.Tensor]

WARM_UPS = 2
"""Runs before a capture: kernels are compiled, libraries take their workspaces, layers make what they keep."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What a step of D decodes reads, on the host.

    Attributes:
        token_ids, positions, slot_mapping, state_slots, rope_lengths: (D,), as in ``ForwardBatch``.
        starts, lengths: (D,), as in ``DecodeTables``.
        blocks: (n,) int32, as in ``DecodeTables``.
    """

    token_ids: Int64Array
    positions: Int64Array
    slot_mapping: Int64Array
    state_slots: Int64Array
    rope_lengths: Int64Array
    starts: Int64Array
    lengths: Int64Array
    blocks: npt.NDArray[np.int32]


_NUM_VECTORS = len(fields(DecodeInputs)) - 1


def padded_sizes(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows that are captured, ascending: close together where a wasted row costs most."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(96, max_rows + 32, 32), max_rows}
    return tuple(sorted(size for size in sizes if size <= max_rows))


class StaticBatch:
    """The inputs of a decode at fixed addresses.

    Args:
        max_rows: Most decodes of a step.
        max_blocks: Most entries of all block tables of a step together.
        block_size: Tokens in one block; 0: the model has no paged state.
        device: Where the network is.
    """

    def __init__(self, max_rows: int, max_blocks: int, block_size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._block_size = block_size
        self._host_rows = torch.zeros(_NUM_VECTORS, max_rows, dtype=torch.int64, pin_memory=pinned)
        self._host_blocks = torch.zeros(max_blocks, dtype=torch.int32, pin_memory=pinned)
        self._rows = torch.zeros(_NUM_VECTORS, max_rows, dtype=torch.int64, device=device)
        self._blocks = torch.zeros(max_blocks, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def load(self, inputs: DecodeInputs) -> None:
        """Put a step's inputs into the buffers, zeros in the rows after them."""
        if self._copied is not None:
            self._copied.synchronize()  # the copy of the step before may still read the host's side
        count, num_blocks = len(inputs.token_ids), len(inputs.blocks)
        rows = self._host_rows.numpy()
        rows[:, count:] = 0
        for target, field in zip(rows, fields(inputs), strict=False):
            target[:count] = getattr(inputs, field.name)
        self._host_blocks.numpy()[:num_blocks] = inputs.blocks
        self._rows.copy_(self._host_rows, non_blocking=True)
        self._blocks[:num_blocks].copy_(self._host_blocks[:num_blocks], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def batch(self, rows: int) -> ForwardBatch:
        """A decode of ``rows`` rows over the buffers."""
        token_ids, positions, slot_mapping, state_slots, rope_lengths, starts, lengths = self._rows[:, :rows].unbind(0)
        tables = DecodeTables(self._blocks, starts, lengths, self._block_size) if self._block_size else None
        return ForwardBatch(
            input_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            state_slots=state_slots,
            num_decodes=rows,
            prefills=(),
            decode_tables=tables,
            rope_lengths=rope_lengths,
        )


class CaptureStream:
    """Where graphs are warmed up and captured, and the memory that they share.

    One stream for all of it, so that what libraries keep for a stream (cuBLAS: 32 MiB) is there before the capture.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run what is queued here after what was queued before, and before what follows."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Put what is queued here into the graph instead of running it."""
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            yield


class DecodeGraphs:
    """Captured decodes of one network, by number of rows.

    Args:
        forward: The network.
        spec: What it was built from.
        states: Of its layers; the graphs hold their addresses.
        static: The inputs.
        max_rows: Most decodes of a step.
    """

    def __init__(
        self, forward: Forward, spec: ModelSpec, states: Sequence[LayerState], static: StaticBatch, max_rows: int
    ) -> None:
        self._forward = forward
        self._states = states
        self._static = static
        self._sizes = padded_sizes(max_rows)
        self._advanced_in_torch = [
            tensor
            for layer, tensors in zip(spec.layers, states, strict=True)
            if isinstance(layer.token_mixer, Mamba1Spec | Mamba3Spec)
            for tensor in tensors.values()
        ]
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size, the largest first, so that the smaller ones fit into its memory."""
        stream = CaptureStream()
        for size in reversed(self._sizes):
            with stream.beside():
                for _ in range(WARM_UPS):
                    self.run_padded(size)
            graph = torch.cuda.CUDAGraph()
            with stream.capture(graph):
                hidden = self.run_padded(size)
            self._graphs[size] = (graph, hidden)

    def run(self, inputs: DecodeInputs) -> torch.Tensor:
        """(D, h) hidden rows; valid until the next call."""
        self._static.load(inputs)
        count = len(inputs.token_ids)
        graph, hidden = self._graphs[self.padded_size(count)]
        graph.replay()
        return hidden[:count]

    def padded_size(self, count: int) -> int:
        """Rows of the graph that serves ``count`` decodes."""
        return self._sizes[bisect_left(self._sizes, count)]

    def run_padded(self, size: int) -> torch.Tensor:
        """(size, h): what is captured, run eagerly."""
        hidden = self._forward(self._static.batch(size), self._states)
        for tensor in self._advanced_in_torch:
            tensor[0].zero_()
        return hidden
