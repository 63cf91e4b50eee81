"""What lies between the projections of each token mixer, on the device: kernels where they pay, the layer's own
PyTorch (fused attention over a first chunk) where that is what a kernel would do.

Nothing here waits for the device while a batch only decodes, and nothing's shape depends on how long the contexts
are: that is what lets ``engine.cuda_graphs`` capture a decode.

Shape letters: T rows, D decoding sequences, H heads, P head width, r kv_lora_rank, R rotated width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inference.modelling.backends.triton.attention import decode_attention, decode_latent_attention
from inference.modelling.backends.triton.mamba2 import chunk_scan, conv_chunk, conv_step, state_step
from inference.modelling.backends.triton.norm import gated_norm
from inference.modelling.backends.triton.prefill import chunk_attention
from inference.modelling.backends.triton.rotary import latent_rope_and_write, rope_and_write
from inference.modelling.forward_batch import ForwardBatch, LayerState

if TYPE_CHECKING:
    from inference.modelling.layers.attention import Attention
    from inference.modelling.layers.mamba2 import Mamba2Mixer
    from inference.modelling.layers.mla import MultiHeadLatentAttention


def attention(layer: Attention, joint: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    """``Attention.reference``: the joint projection's rows (T, (H + 2V) · P) to o_proj's input (T, H · P)."""
    spec = layer.spec
    heads, kv_heads, width = spec.num_heads, spec.num_kv_heads, spec.head_dim
    split = joint.view(-1, heads + 2 * kv_heads, width)
    head_norm, q_weight, k_weight = None, None, None
    if layer.q_norm is not None and layer.k_norm is not None:
        if spec.qk_norm_per_head and layer.q_norm.spec.kind == "rms":
            head_norm, q_weight, k_weight = spec.qk_norm, layer.q_norm.weight, layer.k_norm.weight
        else:
            normed = layer._normed(split[:, :heads], split[:, heads : heads + kv_heads])
            split = torch.cat((*normed, split[:, heads + kv_heads :]), 1)
    rope = layer._rope
    query, key, value = rope_and_write(
        split,
        None if rope is None else rope.step(batch),
        batch.slot_mapping,
        state["k"],
        state["v"],
        num_heads=heads,
        interleaved=rope is not None and rope.spec.interleaved,
        head_norm=head_norm,
        q_weight=q_weight,
        k_weight=k_weight,
    )
    decodes = batch.num_decodes
    parts = []
    if decodes:
        assert batch.decode_tables is not None
        mixed = decode_attention(
            query[:decodes],
            state["k"],
            state["v"],
            batch.decode_tables,
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            softcap=spec.softcap,
        )
        if not batch.prefills:
            return mixed.flatten(1)
        parts.append(mixed)
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        count = chunk.stop - chunk.start
        sees_all = spec.sliding_window is None or spec.sliding_window >= count
        if chunk.context_len == 0 and sees_all and spec.softcap is None:
            parts.append(layer._prefill(chunk, query[rows], key[rows], value[rows], batch, state))
            continue
        parts.append(
            chunk_attention(
                query[rows],
                state["k"],
                state["v"],
                chunk.kv_slots,
                scale=spec.scale,
                sliding_window=spec.sliding_window,
                softcap=spec.softcap,
            )
        )
    return torch.cat(parts).flatten(1)


def latent_attention(
    layer: MultiHeadLatentAttention,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    compressed: torch.Tensor,
    batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:
    """MLA between its projections.

    Args:
        layer: Whose expansions and norm are used.
        q_nope: (T, H, N); q_rope: (T, H, R), not rotated yet.
        compressed: (T, r + R) of ``kv_a_proj``.
        batch: The step.
        state: Of the layer.

    Returns:
        (T, H, W), o_proj's input.
    """
    spec, norm = layer.spec, layer.kv_a_norm
    fuses = norm is not None and norm.spec.kind == "rms"
    if norm is not None and not fuses:
        rank = spec.kv_lora_rank
        compressed = torch.cat((norm(compressed[:, :rank]), compressed[:, rank:]), 1)
    q_rope, latent = latent_rope_and_write(
        q_rope,
        compressed,
        layer._rope.step(batch),
        batch.slot_mapping,
        state["latent"],
        interleaved=spec.rope.interleaved,
        norm=spec.kv_a_norm if fuses else None,
        weight=norm.weight if norm is not None and fuses else None,
    )
    decodes = batch.num_decodes
    parts = []
    if decodes:
        assert batch.decode_tables is not None
        absorbed = layer.k_b_proj.absorb(q_nope[:decodes])
        mixed = decode_latent_attention(
            absorbed, q_rope[:decodes], state["latent"], batch.decode_tables, scale=spec.scale
        )
        expanded = layer.v_b_proj.expand_mixed(mixed)
        if not batch.prefills:
            return expanded
        parts.append(expanded)
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        parts.append(layer._prefill(chunk, q_nope[rows], q_rope[rows], latent[rows], batch, state))
    return torch.cat(parts)


def mamba2(layer: Mamba2Mixer, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    """``Mamba2Mixer.mix``: ``in_proj``'s rows to out_proj's input (T, I) in their dtype."""
    spec, conv = layer.spec, layer.conv1d
    inner = spec.intermediate_size
    gate, dt = projected[:, :inner], projected[:, inner + spec.conv_width :]
    xbc = projected[:, inner : inner + spec.conv_width]
    decodes = batch.num_decodes
    rates, dt_bias, skip = layer.decay_rates(), layer.dt_bias, layer.D
    parts = []
    if decodes:
        slots = batch.decode_state_slots
        entering = conv_step(xbc[:decodes], state["conv_state"], slots, conv.weight, conv.bias, spec.activation)
        parts.append(
            state_step(
                entering,
                dt[:decodes],
                dt_bias,
                rates,
                skip,
                state["ssm_state"],
                slots,
                num_groups=spec.num_groups,
                dt_min=spec.dt_min,
                dt_max=spec.dt_max,
            )
        )
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        count, fresh = chunk.stop - chunk.start, chunk.context_len == 0
        entering = torch.empty(count, spec.conv_width, dtype=torch.float32, device=projected.device)
        conv_chunk(
            xbc[rows],
            state["conv_state"][chunk.state_slot],
            conv.weight,
            conv.bias,
            spec.activation,
            entering,
            fresh=fresh,
        )
        out = torch.empty(count, spec.intermediate_size, dtype=torch.float32, device=projected.device)
        chunk_scan(
            entering,
            dt[rows],
            dt_bias,
            rates,
            skip,
            state["ssm_state"][chunk.state_slot],
            out,
            num_groups=spec.num_groups,
            dt_min=spec.dt_min,
            dt_max=spec.dt_max,
            fresh=fresh,
            exact=projected.dtype == torch.float32,
        )
        parts.append(out)
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    return gated_norm(
        y,
        gate,
        layer.norm.spec,
        layer.norm.weight,
        group_size=layer.norm.group_size,
        norm_before_gate=layer.norm.norm_before_gate,
        dtype=projected.dtype,
    )
