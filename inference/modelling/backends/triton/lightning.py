"""Lightning attention on the device, by the kernels of Mamba-2: values enter, keys are B and queries are C.

dt_min = dt_max = 1 fixes the step sizes at 1; the rates of Mamba-2's heads are the logarithms of the fixed decays.

Reference: ``layers.lightning.LightningAttention``.
"""

from __future__ import annotations

import torch

from inference.modelling.backends.triton.mamba2 import chunk_scan, state_step
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS


def mix_lightning(layer: LightningAttention, qkv: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    """``LightningAttention.mix``: one launch for the decoding rows, and one for each chunk."""
    spec, pool = layer.spec, state["linear_state"]
    activated = ACTIVATION_FUNCTIONS[spec.activation](qkv.float())
    vkq = activated.view(-1, 3, spec.width).flip(1).flatten(1)  # x, B and C of Mamba-2
    zeros = torch.zeros(spec.num_heads, device=qkv.device)  # biases of the step sizes, and no skip connection
    rates, dt = layer.log_decays(qkv.device), zeros.expand(qkv.shape[0], -1)
    decodes = batch.num_decodes
    parts = []
    if decodes:
        mixed = state_step(
            vkq[:decodes], dt[:decodes], zeros, rates, zeros, pool, batch.decode_state_slots,
            num_groups=spec.num_heads, dt_min=1.0, dt_max=1.0,
        )  # fmt: skip
        parts.append(mixed)
    for chunk in batch.prefills:
        rows, entry = vkq[chunk.start : chunk.stop], pool[chunk.state_slot]
        out = torch.empty(len(rows), spec.width, dtype=torch.float32, device=qkv.device)
        chunk_scan(
            rows, dt[chunk.start : chunk.stop], zeros, rates, zeros, entry, out,
            num_groups=spec.num_heads, dt_min=1.0, dt_max=1.0, fresh=chunk.context_len == 0,
            exact=qkv.dtype == torch.float32,
        )  # fmt: skip
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
