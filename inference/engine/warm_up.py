"""Run steps of every kind before the first request, because first runs on a device take seconds.

First runs compile kernels, and libraries choose matrix products and allocate memory. Warm-up runs decodes, first and
later chunks, numbers of rows that have products of their own, and the largest step. It uses scratch slots and zeroes
them afterwards. A lack of memory then fails the load instead of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from inference.engine.config import EngineConfig
from inference.modelling.forward_batch import DecodeTables, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.spec import ModelSpec

Forward = Callable[[ForwardBatch, Sequence[LayerState]], torch.Tensor]

MIXED_CHUNKS = ((3, 0), (5, 4), (1, 0), (1, 7))
"""(tokens, context) of the chunks in a mixed step; odd lengths, so that later rows aren't aligned."""


@torch.inference_mode()
def warm_up(
    forward: Forward,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    spec: ModelSpec,
    states: Sequence[LayerState],
    config: EngineConfig,
    product_rows: Sequence[int],
) -> None:
    """Run steps of every kind.

    Args:
        forward: The network's forward pass; its decodes read ``ForwardBatch.decode_tables``.
        compute_logits: The network's head.
        spec: The network's specification.
        states: States of the network's layers; the scratch slots are zero afterwards.
        config: Sizes of the engine.
        product_rows: Numbers of rows that have products of their own.
    """
    device = torch.device(config.device)
    hidden = forward(scratch_batch(min(2, config.max_num_seqs), MIXED_CHUNKS, config.block_size, device), states)
    compute_logits(hidden[:1])
    most = config.max_num_batched_tokens
    for rows in sorted({min(rows, most) for rows in product_rows}):
        compute_logits(forward(scratch_batch(0, ((rows, 0),), config.block_size, device), states))
    hidden = forward(scratch_batch(0, ((most, 0),), config.block_size, device), states)
    compute_logits(hidden[: config.max_num_seqs])
    for layer, tensors in zip(spec.layers, states, strict=True):
        for part in layer.state():
            tensors[part.name][: config.block_size if part.per == "token" else 1].zero_()


def scratch_batch(
    num_decodes: int, chunks: Sequence[tuple[int, int]], block_size: int, device: torch.device
) -> ForwardBatch:
    """Return a batch that uses scratch slots only.

    Args:
        num_decodes: Number of decodes; their context is empty.
        chunks: Tokens and context of each chunk.
        block_size: Tokens in one block.
        device: Device of the network.
    """
    positions = [torch.zeros(num_decodes, dtype=torch.int64, device=device)]
    prefills, row = [], num_decodes
    for number, (count, context) in enumerate(chunks, num_decodes):
        positions.append(torch.arange(context, context + count, device=device))
        kv_slots = torch.zeros(context + count, dtype=torch.int64, device=device)
        prefills.append(PrefillChunk(row, row + count, context, number, 0, kv_slots))
        row += count
    rows = torch.zeros(row, dtype=torch.int64, device=device)
    tables = None
    if num_decodes:
        nothing = rows[:num_decodes]
        tables = DecodeTables(torch.zeros(1, dtype=torch.int32, device=device), nothing, nothing, block_size)
    places = torch.cat(positions)
    return ForwardBatch(
        input_ids=rows,
        positions=places,
        slot_mapping=rows,
        state_slots=torch.zeros(num_decodes + len(chunks), dtype=torch.int64, device=device),
        num_decodes=num_decodes,
        prefills=tuple(prefills),
        rope_lengths=places + 1,
        decode_tables=tables,
    )
