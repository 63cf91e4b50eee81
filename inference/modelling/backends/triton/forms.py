"""Layer types in Triton kernels: ``FORMS`` gives for each type the methods that a CUDA device replaces.

Each form takes the layer and the arguments of the method it replaces, whose docstring describes them. Where a kernel
would do what PyTorch does (fused attention over a first chunk), the layer's own method is called.

While a batch only decodes, no form waits for the device, and no shape depends on how long the contexts are: that is
what lets ``cuda_graphs`` capture a decode.

Shape letters: T rows, D decoding sequences, H heads, P head width, r kv_lora_rank, R rotated width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from inference.modelling.backends.triton.activations import gated_activation
from inference.modelling.backends.triton.attention import decode_attention, decode_latent_attention
from inference.modelling.backends.triton.conv import convolve
from inference.modelling.backends.triton.delta import DeltaRows
from inference.modelling.backends.triton.lightning import mix_lightning
from inference.modelling.backends.triton.mamba2 import chunk_scan, state_step
from inference.modelling.backends.triton.mlstm import mix_mlstm
from inference.modelling.backends.triton.moe import Stack, run_experts
from inference.modelling.backends.triton.norm import add_norm, gated_norm
from inference.modelling.backends.triton.prefill import chunk_attention
from inference.modelling.backends.triton.rg_lru import mix_rg_lru
from inference.modelling.backends.triton.rotary import latent_rope_and_write, rope_and_write
from inference.modelling.backends.triton.rwkv import mix_wkv, shift_tokens
from inference.modelling.backends.triton.streams import balance_streams
from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.convolved_attention import ConvolvedAttention
from inference.modelling.layers.gated_delta import GatedDelta
from inference.modelling.layers.kimi_delta import KimiDelta
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.layers.mlp import MLP
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.moe import Experts
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import GatedNorm
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import ChannelMix, TimeMix
from inference.modelling.layers.sinkhorn_streams import SinkhornConnection


def _normalise(layer: Norm, hidden: torch.Tensor) -> torch.Tensor:
    if not layer.is_plain:
        return Norm.normalise(layer, hidden)
    return add_norm(hidden, None, 1.0, layer.spec, layer.weight, layer.bias)


def _add_normalise(layer: Norm, hidden: torch.Tensor, mixed: torch.Tensor, multiplier: float) -> torch.Tensor:
    if not layer.is_plain:
        return Norm.add_normalise(layer, hidden, mixed, multiplier)
    return add_norm(hidden, mixed, multiplier, layer.spec, layer.weight, layer.bias)


def _activate(layer: MLP | Experts, values: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    if not layer.is_plain or not spec.gated:
        return type(layer).activate(layer, values)  # type: ignore[arg-type]
    return gated_activation(values, spec.activation)


def _mix_attention(layer: Attention, joint: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    spec = layer.spec
    if not layer.is_plain:
        return Attention.mix(layer, joint, batch, state)
    heads, kv_heads, width = spec.num_heads, spec.num_kv_heads, spec.head_dim
    split = joint.view(-1, heads + 2 * kv_heads, width)
    head_norm, q_weight, k_weight = None, None, None
    if layer.q_norm is not None and layer.k_norm is not None:
        if spec.qk_norm_per_head and layer.q_norm.spec.kind == "rms" and layer.q_norm.is_shared:
            head_norm, q_weight, k_weight = spec.qk_norm, layer.q_norm.weight, layer.k_norm.weight
        else:
            normed = layer.normed(split[:, :heads], split[:, heads : heads + kv_heads])
            split = torch.cat((*normed, split[:, heads + kv_heads :]), 1)
    rope = layer.rope
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
        mixed = decode_attention(
            query[:decodes],
            state["k"],
            state["v"],
            batch.attention,
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            softcap=spec.softcap,
        )
        if not batch.prefills:
            return mixed.flatten(1)
        parts.append(mixed)
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        parts.append(_attend_chunk(layer, chunk, query[rows], key[rows], value[rows], batch, state))
    return torch.cat(parts).flatten(1)


def _attend_chunk(
    layer: Attention,
    chunk: PrefillChunk,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:
    """``Attention.attend_chunk``, which stays for a first chunk of which each row sees all before it, and for runs."""
    spec = layer.spec
    sees_all = spec.sliding_window is None or spec.sliding_window >= chunk.stop - chunk.start
    if chunk.whole_spans or (chunk.context_len == 0 and sees_all and spec.softcap is None):
        return layer.attend_chunk(chunk, query, key, value, batch, state)
    contexts = batch.attention
    return chunk_attention(
        query,
        state["k"],
        state["v"],
        contexts.blocks,
        contexts.starts[chunk.sequence : chunk.sequence + 1],
        chunk.context_len,
        contexts.block_size,
        scale=spec.scale,
        sliding_window=spec.sliding_window,
        softcap=spec.softcap,
    )


def _mix_latent_attention(
    layer: MultiHeadLatentAttention,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    rows: torch.Tensor,
    batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:
    spec, norm = layer.spec, layer.kv_a_norm
    fuses = norm is not None and norm.spec.kind == "rms"
    if norm is not None and not fuses:
        rank = spec.kv_lora_rank
        rows = torch.cat((norm(rows[:, :rank]), rows[:, rank:]), 1)
    q_rope, latent = latent_rope_and_write(
        q_rope,
        rows,
        None if layer.rope is None else layer.rope.step(batch),
        batch.slot_mapping,
        state["latent"],
        interleaved=layer.rope is not None and layer.rope.spec.interleaved,
        norm=spec.kv_a_norm if fuses else None,
        weight=norm.weight if norm is not None and fuses else None,
    )
    decodes = batch.num_decodes
    parts = []
    if decodes:
        absorbed = layer.k_b_proj.absorb(q_nope[:decodes])
        mixed = decode_latent_attention(absorbed, q_rope[:decodes], state["latent"], batch.attention, scale=spec.scale)
        expanded = layer.v_b_proj.expand_mixed(mixed)
        if not batch.prefills:
            return expanded.flatten(1)
        parts.append(expanded)
    for chunk in batch.prefills:
        span = slice(chunk.start, chunk.stop)
        parts.append(layer.attend_chunk(chunk, q_nope[span], q_rope[span], latent[span], batch, state))
    return torch.cat(parts).flatten(1)


def _mix_mamba2(layer: Mamba2Mixer, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    spec = layer.spec
    inner = spec.intermediate_size
    gate, dt = projected[:, :inner], projected[:, inner + spec.conv_width :]
    entering = layer.conv1d(projected[:, inner : inner + spec.conv_width], batch, state["conv_state"])
    decodes = batch.num_decodes
    parts = []
    if decodes:
        parts.append(
            state_step(
                entering[:decodes],
                dt[:decodes],
                layer.dt_bias,
                layer.decay_rates(),
                layer.D,
                state["ssm_state"],
                batch.decode_state_slots,
                num_groups=spec.num_groups,
                dt_min=spec.dt_min,
                dt_max=spec.dt_max,
            )
        )
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        parts.append(_scan_chunk(layer, chunk, entering[rows], dt[rows], state))
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


def _scan_chunk(
    layer: Mamba2Mixer, chunk: PrefillChunk, entering: torch.Tensor, dt: torch.Tensor, state: LayerState
) -> torch.Tensor:
    """A chunk's convolved rows (n, C) and step sizes (n, H) through the recurrence, to (n, I) float32."""
    spec = layer.spec
    out = torch.empty(entering.shape[0], spec.intermediate_size, dtype=torch.float32, device=entering.device)
    chunk_scan(
        entering,
        dt,
        layer.dt_bias,
        layer.decay_rates(),
        layer.D,
        state["ssm_state"][chunk.state_slot],
        out,
        num_groups=spec.num_groups,
        dt_min=spec.dt_min,
        dt_max=spec.dt_max,
        fresh=chunk.context_len == 0,
        exact=dt.dtype == torch.float32,
    )
    return out


def _mix_gated_delta(
    layer: GatedDelta, projected: torch.Tensor, ba: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> torch.Tensor:
    spec = layer.spec
    convolved = layer.conv1d(projected[:, : spec.conv_width], batch, state["conv_state"])
    beta, log_decay = layer.gates(ba)
    widths = (spec.key_width, spec.key_width, spec.value_width)
    exact = projected.dtype == torch.float32
    out = _delta_rule(convolved, widths, beta, log_decay, spec.num_key_heads, batch, state["delta_state"], exact)
    norm, gate = layer.norm, projected[:, spec.conv_width :]
    if norm.gate == "sigmoid":
        return GatedNorm.normalise(norm, out.flatten(1), gate)
    return gated_norm(
        out.flatten(1),
        gate,
        norm.spec,
        None if norm.weight is None else norm.repeated_weight(),
        group_size=norm.group_size,
        norm_before_gate=True,
        dtype=projected.dtype,
    )


def _mix_kimi_delta(
    layer: KimiDelta, qkv: torch.Tensor, b: torch.Tensor, decay: torch.Tensor, gate: torch.Tensor,
    batch: ForwardBatch, state: LayerState,
) -> torch.Tensor:  # fmt: skip
    spec = layer.spec
    convolved = layer.conv1d(qkv, batch, state["conv_state"])
    beta, log_decay = b.float().sigmoid(), layer.log_decays(decay.float())
    widths, heads = (spec.width, spec.width, spec.width), spec.num_heads
    log_decay, exact = log_decay.view(-1, heads, spec.head_dim), qkv.dtype == torch.float32
    out = _delta_rule(convolved, widths, beta, log_decay, heads, batch, state["delta_state"], exact)
    normed: torch.Tensor = layer.norm(out.flatten(1), gate)
    return normed


def _delta_rule(
    convolved: torch.Tensor, widths: tuple[int, int, int], beta: torch.Tensor, log_decay: torch.Tensor,
    num_key_heads: int, batch: ForwardBatch, pool: torch.Tensor, exact: bool,
) -> torch.Tensor:  # fmt: skip
    """The batch's rows (T, C) of q, k and v through the delta rule, to (T, H, V): decodes, then each chunk."""
    out = torch.empty(convolved.shape[0], *pool.shape[1::2], dtype=torch.float32, device=convolved.device)
    query, key, value = torch.split(convolved, list(widths), 1)
    rows = DeltaRows(query, key, value, beta.contiguous(), log_decay.contiguous(), pool, num_key_heads, out, exact)
    if batch.num_decodes:
        rows.decode(batch.decode_state_slots)
    for chunk in batch.prefills:
        rows.prefill(chunk)
    return out


def _mix_experts(layer: Experts, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    first, second = (layer.packed.get(leaf, getattr(layer, leaf)) for leaf in layer.stacks)
    if not layer.is_plain or not isinstance(first, Stack) or not isinstance(second, Stack):
        return Experts.mix(layer, hidden, weights, chosen)
    spec = layer.spec
    return run_experts(hidden, weights, chosen, first, second, gated=spec.gated, activation=spec.activation)


def _balance_streams(layer: SinkhornConnection, logits: torch.Tensor) -> torch.Tensor:
    return balance_streams(logits, layer.spec.iterations, layer.spec.eps)


FORMS: Mapping[type[nn.Module], Mapping[str, Callable[..., Any]]] = {
    Norm: {"normalise": _normalise, "add_normalise": _add_normalise},
    MLP: {"activate": _activate},
    Attention: {"mix": _mix_attention},
    ConvolvedAttention: {"mix": _mix_attention},
    MultiHeadLatentAttention: {"mix": _mix_latent_attention},
    CausalConv1d: {"convolve": convolve},
    Mamba2Mixer: {"mix": _mix_mamba2},
    GatedDelta: {"mix": _mix_gated_delta},
    KimiDelta: {"mix": _mix_kimi_delta},
    LightningAttention: {"mix": mix_lightning},
    RGLRU: {"mix": mix_rg_lru},
    MLSTM: {"mix": mix_mlstm},
    TimeMix: {"shift": shift_tokens, "mix": mix_wkv},
    ChannelMix: {"shift": shift_tokens},
    Experts: {"mix": _mix_experts, "activate": _activate},
    SinkhornConnection: {"balance": _balance_streams},
}
"""Layer type to the methods that are replaced, by name."""
