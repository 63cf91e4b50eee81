"""BatchBuilder: convert a step's schedule to tensors.

Shape letters: T tokens of the step, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from inference.engine.config import EngineConfig
from inference.engine.device import upload, upload_ids
from inference.engine.images import whole_spans
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.engine.state_manager import StateManager
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.forward_batch import UNPAGED, AdapterRows, AttentionMetadata, ForwardBatch, PrefillChunk
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec


class BatchBuilder:
    """Build the batches of one network.

    Args:
        spec: Specification of the network.
        config: Sizes of the engine.
        states: State manager with the block tables.
        adapters: The adapters of the network; None: it has none.
    """

    def __init__(
        self, spec: ModelSpec, config: EngineConfig, states: StateManager, adapters: NetworkAdapters | None = None
    ) -> None:
        self._states = states
        self._adapters = adapters
        self._block_size = config.block_size
        self._needs_rope_lengths = any(
            _depends_on_length(mixer) for layer in spec.layers for mixer in layer.token_mixers
        )

    def build(self, step: SchedulerOutput, device: torch.device, offsets: Sequence[int] | None = None) -> ForwardBatch:
        """Return the step's tensors on ``device``, built with array operations instead of loops over tokens.

        Args:
            offsets: Position of each sequence's first token; None: 0.
        """
        items = step.scheduled
        token_ids: list[int] = []
        for item in items:
            token_ids += item.request.token_ids[item.num_computed_tokens : item.stop]
            token_ids += item.draft_token_ids
        states = [item.request.state for item in items if item.request.state is not None]
        indices = np.array([state.index for state in states], dtype=np.int64)
        slots = [state.slot for state in states]
        lengths = np.array([item.stop for item in items], dtype=np.int64)
        counts = np.array([item.num_tokens for item in items], dtype=np.int64)
        first_rows = np.concatenate([[0], np.cumsum(counts)])
        positions = np.arange(len(token_ids)) + np.repeat(lengths - first_rows[1:], counts)

        attention, slot_mapping = UNPAGED, np.zeros(len(token_ids), dtype=np.int64)
        if self._states.has_paged_state:
            size, num_blocks = self._block_size, -(-lengths // self._block_size)
            is_used = np.arange(num_blocks.max()) < num_blocks[:, None]
            blocks = self._states.kv.block_tables[indices, : is_used.shape[1]][is_used]
            starts = np.cumsum(num_blocks) - num_blocks
            written = blocks[np.repeat(starts, counts) + positions // size].astype(np.int64)
            slot_mapping = written * size + positions % size
            attention = AttentionMetadata(
                blocks=upload(blocks, device),
                starts=upload(starts, device),
                lengths=upload(lengths, device),
                first_rows=upload(first_rows, device),
                block_size=size,
            )
        places = positions if offsets is None else positions + np.repeat(np.array(offsets, dtype=np.int64), counts)
        rope_lengths = None
        if self._needs_rope_lengths:
            # The prompt's length doesn't change, so a recomputed sequence gets the frequencies it had before.
            prompts = np.array([item.request.num_prompt_tokens for item in items], dtype=np.int64)
            rope_lengths = upload(np.maximum(np.repeat(prompts, counts), places + 1), device)
        return ForwardBatch(
            input_ids=upload_ids(token_ids, device),
            positions=upload(places, device),
            slot_mapping=upload(slot_mapping, device),
            state_slots=upload_ids(slots, device),
            num_decodes=step.num_decodes,
            prefills=_prefill_chunks(items, slots, first_rows, step.num_decodes),
            attention=attention,
            rope_lengths=rope_lengths,
            adapters=self._adapter_rows(items, counts, device),
        )

    def _adapter_rows(
        self, items: Sequence[ScheduledRequest], counts: np.ndarray, device: torch.device
    ) -> AdapterRows | None:
        """Return the adapters of a step's rows; None: no request has one."""
        present = {item.request.adapter_slot for item in items} - {0}
        if self._adapters is None or not present:
            return None
        slots = np.repeat(np.array([item.request.adapter_slot for item in items], dtype=np.int64), counts)
        is_eager = any(self._adapters.is_eager(slot) for slot in present)
        return AdapterRows(upload(slots, device), tuple(sorted(present)), is_eager)


def _depends_on_length(mixer: object) -> bool:
    return isinstance(mixer, AttentionSpec | MLASpec) and mixer.rope is not None and mixer.rope.depends_on_length


def _prefill_chunks(
    items: Sequence[ScheduledRequest], slots: Sequence[int], first_rows: np.ndarray, num_decodes: int
) -> tuple[PrefillChunk, ...]:
    return tuple(
        PrefillChunk(
            int(first_rows[at]),
            int(first_rows[at + 1]),
            item.num_computed_tokens,
            at,
            slots[at],
            whole_spans(item) if item.request.source.images else (),
        )
        for at, item in enumerate(items[num_decodes:], num_decodes)
    )
