"""ModelRunner: own the state tensors, and compute hidden rows and logits.

The device code of a step is in this module, ``batch_builder`` and ``sampling``, besides that of speculation and the
prefix cache.

Shape letters: T tokens of the step, B sequences, h hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from inference.engine.batch_builder import BatchBuilder
from inference.engine.config import EngineConfig
from inference.engine.device import choose_attention, upload_ids
from inference.engine.images import ImageRows
from inference.engine.request import TokenLogprobs
from inference.engine.sampling.sampler import Sampler, numerical_error
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.engine.state_manager import StateManager
from inference.engine.warm_up import warm_up
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.adapters.scaling_pass import ScalingPass
from inference.modelling.backends.backend import Backend, bind_backend
from inference.modelling.backends.native.decode_programs import DecodePrograms
from inference.modelling.backends.triton.cuda_graphs import DecodeGraphs
from inference.modelling.forward_batch import AdapterRows, ForwardBatch, LayerState
from inference.modelling.layers.packed import output_bits
from inference.modelling.mapped import mapped_zeros
from inference.modelling.spec import ModelSpec

LOGPROBS_SLICE_BYTES = 32 << 20
"""Maximum bytes of float32 logits that exist at once while prompt tokens are scored."""

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Network(Protocol):
    """The methods of a network that the engine calls."""

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        """Return the (T, h) hidden rows of the step's tokens; advance the states in place."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the (n, V) float32 logits of (n, h) hidden rows."""


def allocate_states(spec: ModelSpec, config: EngineConfig) -> list[LayerState]:
    """Return zeroed state tensors of every layer; the first axis is the physical slot."""
    # Mapped memory is written on first use, so that a load doesn't write gigabytes of zeros.
    is_mapped = torch.device(config.device).type == "cpu"
    zeros = mapped_zeros if is_mapped else partial(torch.zeros, device=config.device)
    num_tokens = config.num_blocks * config.block_size
    num_slots = config.num_state_slots + config.num_snapshot_slots + config.num_spare_slots
    return [
        {
            part.name: zeros(
                (num_tokens if part.per == "token" else num_slots, *part.shape),
                dtype=TORCH_DTYPES[part.stored_dtype(config.dtype, config.state_dtype)],
            )
            for part in layer.state()
        }
        for layer in spec.layers
    ]


class ModelRunner:
    """Own the state tensors, and run the network.

    Args:
        network: Network with its weights on ``config.device``.
        spec: Specification of the network.
        config: Sizes of the engine.
        states: State manager with the block tables.
        adapters: The adapters of the network; None: it has none.
        images: Computes the rows of pictures; None: the model reads text only.

    Attributes:
        layer_states: The state tensors of each layer.
        backend: The faster forms of the network's device.
    """

    def __init__(
        self,
        network: Network,
        spec: ModelSpec,
        config: EngineConfig,
        states: StateManager,
        adapters: NetworkAdapters | None = None,
        images: ImageRows | None = None,
    ) -> None:
        self._network = network
        self._images = images
        self._adapters = adapters
        self._adapter_rows: AdapterRows | None = None
        self._states = states
        self._device = torch.device(config.device)
        self.layer_states = allocate_states(spec, config)
        self._batches = BatchBuilder(spec, config, states, adapters)
        self._invalid_bits = output_bits(config.invalid_token_ids, spec.vocab_size)
        self._slice_rows = max(1, LOGPROBS_SLICE_BYTES // (4 * spec.vocab_size))
        self.backend = Backend(self._device, TORCH_DTYPES[config.dtype])
        self._graphs: DecodeGraphs | None = None
        if isinstance(network, torch.nn.Module):  # a test's network isn't, and has no faster forms
            self.backend = bind_backend(network)
            if self._device.type == "cuda":
                self._graphs = self._capture_decodes(network, spec, config)
        self._programs = self.backend.decode_programs(network, self.layer_states)
        self._scaling_pass = None
        if adapters is not None:
            self._scaling_pass = ScalingPass(network, adapters, lambda: allocate_states(spec, config))
        self._adapter_programs = _AdapterPrograms(lambda: self.backend.decode_programs(network, self.layer_states))

    def _capture_decodes(self, network: torch.nn.Module, spec: ModelSpec, config: EngineConfig) -> DecodeGraphs | None:
        choose_attention()
        warm_up(network, self._network.compute_logits, spec, self.layer_states, config, self.backend.warm_up_rows)
        is_paged = self._states.has_paged_state
        return self.backend.capture_decodes(
            network,
            spec,
            self.layer_states,
            max_rows=config.max_num_seqs,
            max_blocks=config.max_num_seqs * config.max_blocks_per_sequence if is_paged else 1,
            block_size=config.block_size if is_paged else 0,
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of all state tensors."""
        return sum(tensor.nbytes for layer in self.layer_states for tensor in layer.values())

    def forward(self, step: SchedulerOutput) -> torch.Tensor:
        """Return the (T, h) hidden rows of a step, in its order; advance the states."""
        embedded = None if self._images is None else self._images.rows_of_step(step)
        only_decodes = step.num_decodes == len(step.scheduled) and embedded is None
        has_adapters = self._adapters is not None and any(item.request.adapter_slot for item in step.scheduled)
        self._adapter_rows = None
        if only_decodes and self._graphs is not None and not has_adapters:
            return self._graphs.run(self._batches.build(step, torch.device("cpu")))
        batch = self._batches.build(step, self._device)
        batch.embedded = embedded
        if batch.adapters is not None:
            return self._forward_adapted(batch, only_decodes=only_decodes)
        if only_decodes and self._programs is not None:
            return self._programs.run(batch)
        return self._network(batch, self.layer_states)

    def _forward_adapted(self, batch: ForwardBatch, *, only_decodes: bool) -> torch.Tensor:
        """``forward`` of a step with adapters; decodes are recorded apart from those without."""
        assert self._adapters is not None and self._scaling_pass is not None
        rows = self._adapter_rows = self._scaling_pass.run(batch)
        with self._adapters.running(rows):
            if only_decodes and not rows.is_eager:
                programs = self._adapter_programs.of(self._adapters.version)
                if programs is not None:
                    return programs.run(batch)
            return self._network(batch, self.layer_states)

    @contextmanager
    def _adapting(self, rows: Sequence[int]) -> Iterator[None]:
        """Let the head add the adapters of these rows of the step."""
        found = self._adapter_rows
        if found is None or self._adapters is None:
            yield
            return
        if len(rows) != len(found.slots):
            found = found.select(upload_ids(rows, found.slots.device))
        with self._adapters.running(found):
            yield

    def logits_of(self, hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Return the (len(rows), V) float32 logits of ``rows``, which are ascending and distinct."""
        with self._adapting(rows):
            return self._network.compute_logits(_select_rows(hidden, rows))

    def argmax_of(self, hidden: torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the (n,) argmax of ``logits_of`` over the valid ids and (n,) its logits, without logits in memory.

        The lowest of equal ids is returned, and NaN if a row has NaN. None: the network computes logits only.
        """
        network: Any = self._network
        with self._adapting(rows):
            if not getattr(network, "can_choose", False):
                return None
            places, values = network.argmax_logits(_select_rows(hidden, rows), self._invalid_bits)
        return places, values

    def score_prompt(
        self, hidden: torch.Tensor, item: ScheduledRequest, first_row: int, sampler: Sampler
    ) -> Iterator[TokenLogprobs]:
        """Yield the log-probabilities of the prompt tokens that this chunk predicts, without known ones.

        The logits of a whole chunk may not fit in memory, so they are computed in slices.

        Args:
            hidden: (T, h) hidden rows of the step; the request's begin at ``first_row``.

        Raises:
            GenerationFailed: The logits hold NaN or infinity.
        """
        request = item.request
        assert request.prompt_logprobs is not None
        num_top = request.source.params.prompt_logprobs or 0
        prompt = request.source.prompt_token_ids
        # The row of position p predicts position p + 1.
        begin = max(item.num_computed_tokens, len(request.prompt_logprobs))
        end = min(item.stop, len(prompt) - 1)
        for start in range(begin, end, self._slice_rows):
            stop = min(end, start + self._slice_rows)
            row = first_row + start - item.num_computed_tokens
            with self._adapting(range(row, row + stop - start)):
                logits = self._network.compute_logits(hidden[row : row + stop - start])
            if bool((~torch.isfinite(logits.amax(-1))).any()):
                raise numerical_error()
            targets = upload_ids(prompt[start + 1 : stop + 1], hidden.device)
            yield from sampler.score(torch.log_softmax(logits, dim=-1), targets, [num_top] * (stop - start))


class _AdapterPrograms:
    """Recorded decodes of steps with adapters, made anew when modules are adapted that were not before.

    Args:
        make: Makes an empty set of recordings; None: decodes run eagerly.
    """

    def __init__(self, make: Callable[[], DecodePrograms | None]) -> None:
        self._make = make
        self._version = -1
        self._programs: DecodePrograms | None = None

    def of(self, version: int) -> DecodePrograms | None:
        """The recordings for a version of the network's adapted modules."""
        if version != self._version:
            self._version, self._programs = version, self._make()
        return self._programs


def _select_rows(hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return ``rows``, which are ascending and distinct; no copy if they are all rows."""
    if len(rows) == hidden.shape[0]:
        return hidden
    return hidden[upload_ids(rows, hidden.device)]
