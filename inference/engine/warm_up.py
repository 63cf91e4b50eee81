"""Run steps of every kind before the first request, because first runs on a device take seconds.

First runs compile kernels, and libraries choose matrix products and allocate memory. Warm-up runs decodes, first and
later chunks, numbers of rows that have products of their own, and the largest step. It uses scratch slots and zeroes
them afterwards. A lack of memory then fails the load instead of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from inference.engine.config import EngineConfig
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
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
        forward: The network's forward pass.
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
        num_decodes: Number of decodes; their context is one token.
        chunks: Tokens and context of each chunk.
        block_size: Tokens in one block.
        device: Device of the network.
    """
    zeros = partial(torch.zeros, dtype=torch.int64, device=device)
    positions, first_rows, lengths, prefills = [zeros(num_decodes)], list(range(num_decodes + 1)), [1] * num_decodes, []
    for number, (count, context) in enumerate(chunks, num_decodes):
        positions.append(torch.arange(context, context + count, device=device))
        prefills.append(PrefillChunk(first_rows[-1], first_rows[-1] + count, context, number, 0))
        first_rows.append(prefills[-1].stop)
        lengths.append(prefills[-1].length)
    places = torch.cat(positions)
    return ForwardBatch(
        input_ids=zeros(len(places)),
        positions=places,
        slot_mapping=zeros(len(places)),
        state_slots=zeros(len(lengths)),
        num_decodes=num_decodes,
        prefills=tuple(prefills),
        attention=AttentionMetadata(
            blocks=zeros(-(-max(lengths) // block_size), dtype=torch.int32),
            starts=zeros(len(lengths)),
            lengths=torch.tensor(lengths, device=device),
            first_rows=torch.tensor(first_rows, device=device),
            block_size=block_size,
        ),
        rope_lengths=places + 1,
    )
