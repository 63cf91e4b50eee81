"""ModelRunner: convert a step's schedule to tensors, and compute hidden rows and logits.

All device code of the engine is in this module and in the sampler.

Shape letters: T tokens of the step, B sequences, D decodes, L longest decode context, h hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.config import EngineConfig
from inference.engine.device import choose_attention, upload, upload_ids
from inference.engine.request import TokenLogprobs
from inference.engine.sampling.logits_processors import InvalidTokens
from inference.engine.sampling.sampler import Sampler, numerical_error
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.engine.state_manager import SequenceState, StateManager
from inference.engine.warm_up import warm_up
from inference.modelling.backends.backend import Backend, bind_backend
from inference.modelling.backends.native.decode_programs import DecodePrograms
from inference.modelling.backends.triton.cuda_graphs import DecodeGraphs, DecodeInputs
from inference.modelling.forward_batch import DecodeTables, ForwardBatch, LayerState, PagedSequences, PrefillChunk
from inference.modelling.layer_specs import AttentionSpec, MLASpec
from inference.modelling.layers.packed import output_bits
from inference.modelling.mapped import mapped_zeros
from inference.modelling.spec import ModelSpec

Int64Array = npt.NDArray[np.int64]
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Network(Protocol):
    """The methods of a network that the engine calls."""

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        """Return the (T, h) hidden rows of the step's tokens; advance the states in place."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the (n, V) float32 logits of (n, h) hidden rows."""
        ...


def allocate_states(spec: ModelSpec, config: EngineConfig) -> list[LayerState]:
    """Return zeroed state tensors of every layer; the first axis is the physical slot."""
    layers: list[LayerState] = []
    for layer in spec.layers:
        tensors: LayerState = {}
        for part in layer.state():
            slots = config.num_state_slots + config.num_snapshot_slots + config.num_spare_slots
            rows = config.num_blocks * config.block_size if part.per == "token" else slots
            dtype = torch.float32 if part.dtype == "float32" else TORCH_DTYPES[config.dtype]
            shape = (rows, *part.shape)
            # Mapped memory is written on first use, so that a load doesn't write gigabytes of zeros.
            is_mapped = torch.device(config.device).type == "cpu"
            tensors[part.name] = (
                mapped_zeros(shape, dtype) if is_mapped else torch.zeros(shape, dtype=dtype, device=config.device)
            )
        layers.append(tensors)
    return layers


class _DecodeRows(NamedTuple):
    """Inputs of a decode of each request, each (D,) int64; ``prompt_lengths`` is 0 where no layer needs it."""

    token_ids: Int64Array
    positions: Int64Array
    indices: Int64Array
    state_slots: Int64Array
    prompt_lengths: Int64Array


class ModelRunner:
    """Own the state tensors, and run the network.

    Args:
        network: Network with its weights on ``config.device``.
        spec: Specification of the network.
        config: Sizes of the engine.
        states: State manager with the block tables.
    """

    def __init__(self, network: Network, spec: ModelSpec, config: EngineConfig, states: StateManager) -> None:
        self._network = network
        self._states = states
        self._block_size = config.block_size
        self._device = torch.device(config.device)
        self._layers = allocate_states(spec, config)
        self._offsets = torch.arange(config.block_size, device=self._device)
        self._needs_rope_lengths = _depends_on_length(spec)
        self._invalid_bits = output_bits(config.invalid_token_ids, spec.vocab_size)
        self._invalid = InvalidTokens(config.invalid_token_ids, self._device)
        self._slice_rows = max(1, config.logprobs_slice_bytes // (4 * spec.vocab_size))
        # A test's network that isn't a module has no faster forms.
        self.backend = Backend(self._device, TORCH_DTYPES[config.dtype])
        if isinstance(network, torch.nn.Module):
            self.backend = bind_backend(network)
        self._reads_blocks = self.backend.reads_blocks
        self._graphs: DecodeGraphs | None = None
        if self._device.type == "cuda":
            choose_attention()
            if self._reads_blocks:
                warm_up(network, network.compute_logits, spec, self._layers, config, self.backend.warm_up_rows)
            paged = states.has_paged_state
            self._graphs = self.backend.capture_decodes(
                cast("torch.nn.Module", network),
                spec,
                self._layers,
                max_rows=config.max_num_seqs,
                max_blocks=config.max_num_seqs * config.max_blocks_per_sequence if paged else 1,
                block_size=config.block_size if paged else 0,
            )
        self._locations: list[SequenceState | None] = []
        self._indices = self._slots = np.zeros(0, dtype=np.int64)
        self._index_ids = self._slot_ids = torch.from_numpy(self._indices)
        self._tables = torch.from_numpy(states.kv.block_tables)  # the same memory
        self._programs: DecodePrograms | None = None
        if config.replay_decodes:
            self._programs = self.backend.decode_programs(network, self._layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of all state tensors."""
        return sum(tensor.nbytes for layer in self._layers for tensor in layer.values())

    @property
    def layer_states(self) -> list[LayerState]:
        """The state tensors of each layer."""
        return self._layers

    def forward(self, step: SchedulerOutput) -> torch.Tensor:
        """Return the (T, h) hidden rows of a step, in its order; advance the states."""
        only_decodes = step.num_decodes == len(step.scheduled)
        if self._graphs is not None and only_decodes:
            return self._graphs.run(self.decode_inputs(step))
        if self._programs is not None and only_decodes:
            return self._programs.run(self.build_decodes(step))
        return self._network(self.build_batch(step), self._layers)

    def decode_inputs(self, step: SchedulerOutput) -> DecodeInputs:
        """Return the inputs of a step that only decodes, for ``cuda_graphs``."""
        rows = self._decode_rows(step)
        blocks, starts = self._decode_blocks(rows.indices, rows.positions + 1)
        return DecodeInputs(
            token_ids=rows.token_ids,
            positions=rows.positions,
            slot_mapping=self._physical_slots(rows.indices, rows.positions),
            state_slots=rows.state_slots,
            rope_lengths=np.maximum(rows.prompt_lengths, rows.positions + 1),
            starts=starts,
            lengths=rows.positions + 1,
            blocks=blocks,
        )

    def _decode_rows(self, step: SchedulerOutput) -> _DecodeRows:
        items = step.scheduled
        prompts = [item.request.num_prompt_tokens for item in items] if self._needs_rope_lengths else [0] * len(items)
        self._update_locations([item.request.state for item in items])
        return _DecodeRows(
            token_ids=np.array([item.request.token_ids[item.num_computed_tokens] for item in items], dtype=np.int64),
            positions=np.array([item.num_computed_tokens for item in items], dtype=np.int64),
            indices=self._indices,
            state_slots=self._slots,
            prompt_lengths=np.array(prompts, dtype=np.int64),
        )

    def _update_locations(self, locations: list[SequenceState | None]) -> None:
        """Update the request indices and slots of decoding requests, if they differ from the previous step's."""
        if locations == self._locations:
            return
        self._locations = locations
        self._indices = np.array([state.index for state in locations if state is not None], dtype=np.int64)
        self._slots = np.array([state.slot for state in locations if state is not None], dtype=np.int64)
        self._index_ids, self._slot_ids = torch.from_numpy(self._indices), torch.from_numpy(self._slots)

    def logits_of(self, hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Return the (len(rows), V) float32 logits of ``rows``, which are ascending and distinct."""
        return self._network.compute_logits(_select_rows(hidden, rows))

    def argmax_of(self, hidden: torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the argmax of ``logits_of`` over the valid ids, without logits in memory if the network supports it.

        Returns:
            (n,) int64 ids, the lowest of equal ones, and (n,) their logits, NaN if the row has NaN. None: the network
            runs on a CPU and computes logits only, and the sampler is as fast.
        """
        network: Any = self._network
        if not getattr(network, "can_choose", False):
            if self._device.type == "cpu":
                return None
            logits = self.logits_of(hidden, rows)
            self._invalid.apply(logits, ())
            return self.backend.row_maxima(logits)
        places, values = network.argmax_logits(_select_rows(hidden, rows), self._invalid_bits)
        return places, values

    def score_prompt(
        self, hidden: torch.Tensor, item: ScheduledRequest, first_row: int, sampler: Sampler
    ) -> Iterator[TokenLogprobs]:
        """Yield the log-probabilities of the prompt tokens that this chunk predicts, without known ones.

        The chunk is scored in slices, because the logits of a whole chunk may not fit in memory.

        Args:
            hidden: (T, h) hidden rows of the step.
            first_row: First row of the request in ``hidden``.

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
            logits = self._network.compute_logits(hidden[row : row + stop - start])
            if bool((~torch.isfinite(logits.amax(-1))).any()):
                raise numerical_error()
            targets = upload_ids(prompt[start + 1 : stop + 1], hidden.device)
            yield from sampler.score(torch.log_softmax(logits, dim=-1), targets, [num_top] * (stop - start))

    def build_batch(self, step: SchedulerOutput) -> ForwardBatch:
        """Return the step's tensors, built with array operations instead of loops over tokens."""
        token_ids: list[int] = []
        for item in step.scheduled:
            token_ids += item.request.token_ids[item.num_computed_tokens : item.stop]
            token_ids += item.draft_token_ids
        starts = np.array([item.num_computed_tokens for item in step.scheduled], dtype=np.int64)
        counts = np.array([item.num_tokens for item in step.scheduled], dtype=np.int64)
        first_rows = np.concatenate([[0], np.cumsum(counts)])
        positions = np.arange(len(token_ids), dtype=np.int64) + np.repeat(starts - first_rows[:-1], counts)

        states = [item.request.state for item in step.scheduled]
        indices = np.array([state.index for state in states if state is not None], dtype=np.int64)
        slots = [state.slot for state in states if state is not None]
        slot_mapping = self._to_device(self._physical_slots(np.repeat(indices, counts), positions))

        num_decodes = step.num_decodes
        decode_lens = starts[:num_decodes] + 1
        longest = int(decode_lens.max()) if num_decodes else 0
        context_lens = self._to_device(decode_lens) if num_decodes else None
        decode_kv_slots = None
        decode_tables = None
        if context_lens is not None and self._states.has_paged_state and self._reads_blocks:
            blocks, block_starts = self._decode_blocks(indices[:num_decodes], decode_lens)
            decode_tables = DecodeTables(
                upload(blocks, self._device), self._to_device(block_starts), context_lens, self._block_size
            )
        elif context_lens is not None and self._states.has_paged_state:
            decode_kv_slots = self._decode_kv_slots(indices[:num_decodes], context_lens, longest)

        rope_lengths = None
        if self._needs_rope_lengths:
            # The prompt's length doesn't change, so a recomputed sequence gets the frequencies it had before.
            prompts = np.array([item.request.num_prompt_tokens for item in step.scheduled], dtype=np.int64)
            rope_lengths = self._to_device(np.maximum(np.repeat(prompts, counts), positions + 1))

        chunks = [
            PrefillChunk(
                start=int(first_rows[at]),
                stop=int(first_rows[at + 1]),
                context_len=item.num_computed_tokens,
                sequence=at,
                state_slot=slots[at],
                kv_slots=self._sequence_slots(int(indices[at]), item.stop),
            )
            for at, item in enumerate(step.scheduled[num_decodes:], num_decodes)
        ]
        return ForwardBatch(
            input_ids=upload_ids(token_ids, self._device),
            positions=self._to_device(positions),
            slot_mapping=slot_mapping,
            state_slots=upload_ids(slots, self._device),
            num_decodes=num_decodes,
            prefills=tuple(chunks),
            decode_kv_slots=decode_kv_slots,
            decode_context_lens=context_lens,
            max_decode_context=longest,
            rope_lengths=rope_lengths,
            decode_tables=decode_tables,
        )

    def build_decodes(self, step: SchedulerOutput) -> ForwardBatch:
        """``build_batch`` of a step that only decodes, for native layers."""
        items, is_paged = step.scheduled, self._states.has_paged_state
        self._update_locations([item.request.state for item in items])
        positions = [item.num_computed_tokens for item in items]
        token_ids = [item.request.token_ids[item.num_computed_tokens] for item in items]
        ids, position_ids, slot_mapping, slots, table = torch.ops.blazr.decode_inputs.default(
            self._tables, self._index_ids, token_ids, positions, self._block_size if is_paged else 0
        )
        rope_lengths = None
        if self._needs_rope_lengths:
            prompts = torch.tensor([item.request.num_prompt_tokens for item in items])
            rope_lengths = torch.maximum(prompts, position_ids + 1)
        return ForwardBatch(
            input_ids=ids,
            positions=position_ids,
            slot_mapping=slot_mapping,
            state_slots=self._slot_ids,
            num_decodes=len(items),
            prefills=(),
            max_decode_context=max(positions) + 1,
            rope_lengths=rope_lengths,
            native_decodes=PagedSequences(slots, table) if is_paged else None,
        )

    def _physical_slots(self, indices: Int64Array, positions: Int64Array) -> Int64Array:
        """Return the (T,) physical slots of the tokens' paged state; scratch if the model has no paged state."""
        if not self._states.has_paged_state:
            return np.zeros(len(positions), dtype=np.int64)
        blocks, offsets = np.divmod(positions, self._block_size)
        numbers: Int64Array = self._states.kv.block_tables[indices, blocks].astype(np.int64)
        return numbers * self._block_size + offsets

    def _decode_blocks(self, indices: Int64Array, lengths: Int64Array) -> tuple[npt.NDArray[np.int32], Int64Array]:
        """Return the block tables of decodes, cut to the longest, and the start of each; empty if unpaged."""
        if not self._states.has_paged_state:
            return np.zeros(0, dtype=np.int32), np.zeros(len(indices), dtype=np.int64)
        width = -(-int(lengths.max()) // self._block_size)
        blocks = np.ascontiguousarray(self._states.kv.block_tables[indices, :width], dtype=np.int32)
        return blocks.reshape(-1), np.arange(len(indices), dtype=np.int64) * width

    def _sequence_slots(self, index: int, stop: int) -> torch.Tensor:
        """Return the (stop,) physical slots of a sequence's first tokens; empty if the model has no paged state."""
        if not self._states.has_paged_state:
            return torch.empty(0, dtype=torch.int64, device=self._device)
        blocks = self._states.kv.block_tables[index, : -(-stop // self._block_size)].astype(np.int64)
        expanded = self._to_device(blocks).unsqueeze(1) * self._block_size + self._offsets
        return expanded.flatten()[:stop]

    def _decode_kv_slots(self, indices: Int64Array, context_lens: torch.Tensor, longest: int) -> torch.Tensor:
        """Return the (D, L) physical slots of the decoding sequences, 0 beyond each sequence's context.

        The padding must be slot 0, which is always zero: a freed block may hold NaN of a failed request, and a masked
        weight of 0 times NaN is NaN.
        """
        tables = self._states.kv.block_tables[indices, : -(-longest // self._block_size)].astype(np.int64)
        expanded = self._to_device(tables).unsqueeze(2) * self._block_size + self._offsets
        slots = expanded.flatten(1)[:, :longest]
        columns = torch.arange(longest, device=self._device)
        return slots.masked_fill(columns >= context_lens.unsqueeze(1), 0)

    def _to_device(self, values: Int64Array) -> torch.Tensor:
        return upload(values, self._device)


def _select_rows(hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return ``rows``, which are ascending and distinct; no copy if they are all rows."""
    if len(rows) == hidden.shape[0]:
        return hidden
    return hidden[upload_ids(rows, hidden.device)]


def _depends_on_length(spec: ModelSpec) -> bool:
    for layer in spec.layers:
        mixer = layer.token_mixer
        if isinstance(mixer, AttentionSpec | MLASpec) and mixer.rope is not None and mixer.rope.depends_on_length:
            return True
    return False
