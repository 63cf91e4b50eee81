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

import torch

from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.linear import LightningSpec, MLSTMSpec, RGLRUSpec
from inference.modelling.specs.parts import StateTensor
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec

Forward = Callable[[ForwardBatch, Sequence[LayerState]], torch.Tensor]

WARM_UPS = 2
"""Runs before a capture: kernels are compiled, libraries take their workspaces, layers make what they keep."""


NUM_VECTORS = 7
"""(rows,) int64 inputs of a decode, in the order of ``StaticBatch.load``."""


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
        self._host_rows = torch.zeros(NUM_VECTORS, max_rows, dtype=torch.int64, pin_memory=pinned)
        self._host_blocks = torch.zeros(max_blocks, dtype=torch.int32, pin_memory=pinned)
        self._rows = torch.zeros(NUM_VECTORS, max_rows, dtype=torch.int64, device=device)
        self._blocks = torch.zeros(max_blocks, dtype=torch.int32, device=device)
        self._first_rows = torch.arange(max_rows + 1, device=device)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def load(self, batch: ForwardBatch) -> None:
        """Put a step on the host that only decodes into the buffers, zeros in the rows after it."""
        if self._copied is not None:
            self._copied.synchronize()  # the copy of the step before may still read the host's side
        contexts = batch.attention
        rope_lengths = batch.positions + 1 if batch.rope_lengths is None else batch.rope_lengths
        vectors = (batch.input_ids, batch.positions, batch.slot_mapping, batch.state_slots, rope_lengths)
        self._host_rows.zero_()
        for target, values in zip(self._host_rows, (*vectors, contexts.starts, contexts.lengths), strict=True):
            target[: len(values)] = values
        num_blocks = len(contexts.blocks)
        self._host_blocks[:num_blocks] = contexts.blocks
        self._rows.copy_(self._host_rows, non_blocking=True)
        self._blocks[:num_blocks].copy_(self._host_blocks[:num_blocks], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def batch(self, rows: int) -> ForwardBatch:
        """A decode of ``rows`` rows over the buffers."""
        token_ids, positions, slot_mapping, state_slots, rope_lengths, starts, lengths = self._rows[:, :rows].unbind(0)
        first_rows = self._first_rows[: rows + 1]
        return ForwardBatch(
            input_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            state_slots=state_slots,
            num_decodes=rows,
            prefills=(),
            attention=AttentionMetadata(self._blocks, starts, lengths, first_rows, self._block_size),
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


ADVANCED_BY_KERNELS = (Mamba2Spec, LightningSpec, RGLRUSpec, MLSTMSpec, TimeMixSpec, ChannelMixSpec)
"""Mixers whose kernels leave the scratch slot alone in a decode."""


def _is_advanced_by_kernels(layer: LayerSpec, part: StateTensor) -> bool:
    return any(isinstance(mixer, ADVANCED_BY_KERNELS) and part in mixer.state() for mixer in layer.token_mixers)


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
            tensors[part.name]
            for layer, tensors in zip(spec.layers, states, strict=True)
            for part in layer.state()
            if part.per == "sequence" and not _is_advanced_by_kernels(layer, part)
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

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """(D, h) hidden rows of a step on the host that only decodes; valid until the next call."""
        self._static.load(batch)
        count = batch.num_decodes
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
