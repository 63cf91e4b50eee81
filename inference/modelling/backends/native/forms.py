"""Layer types in native kernels: ``FORMS`` gives for each type the methods that a CPU with the library replaces.

Each form takes the layer and the arguments of the method it replaces, whose docstring describes them. Rows are float32
or bfloat16, the dtypes that the native backend is chosen for; what a kernel can't do goes to the layer type's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from inference.modelling.backends.native.packing import NativePacked
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState
from inference.modelling.layers.attention import Attention, chunk_slots
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.convolved_attention import ConvolvedAttention
from inference.modelling.layers.gated_delta import GatedDelta
from inference.modelling.layers.kimi_delta import KimiDelta
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.mamba1 import Mamba1Mixer
from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.layers.mamba3 import Mamba3Mixer
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.layers.mlp import MLP
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.moe import Experts, Router
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import GatedNorm
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import ChannelMix, TimeMix, TokenShift
from inference.modelling.layers.sinkhorn_streams import SinkhornConnection
from inference.modelling.specs.latent import MLASpec

_ACTIVATIONS: Mapping[str | None, int] = {"silu": 0, "gelu_tanh": 1, "relu": 2, "relu2": 3, "gelu": 4, None: 5}
"""The numbers that ``src/activation.h`` gives the activations."""
_NORM_PER_HEAD, _NORM_OVER_ALL = 1, 2
"""How ``gqa_attention`` norms queries and keys; 0: not."""


# --- norms and activations ----------------------------------------------------------------------


def _normalise(layer: Norm, hidden: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    if not layer.is_plain:
        return Norm.normalise(layer, hidden)
    normed: torch.Tensor = torch.ops.blazr.norm.default(
        hidden, layer.weight, layer.bias, spec.eps, spec.offset, spec.kind == "layer"
    )
    return normed


def _add_normalise(layer: Norm, hidden: torch.Tensor, mixed: torch.Tensor, multiplier: float) -> torch.Tensor:
    spec = layer.spec
    if not layer.is_plain:
        return Norm.add_normalise(layer, hidden, mixed, multiplier)
    normed: torch.Tensor = torch.ops.blazr.add_norm.default(
        hidden, mixed, multiplier, layer.weight, layer.bias, spec.eps, spec.offset, spec.kind == "layer"
    )
    return normed


def _activate(layer: MLP | Experts, values: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    if not layer.is_plain or not spec.gated:
        return type(layer).activate(layer, values)  # type: ignore[arg-type]
    activated: torch.Tensor = torch.ops.blazr.gated_activation.default(values, _ACTIVATIONS[spec.activation])
    return activated


# --- attention ----------------------------------------------------------------------------------


def context_arguments(
    attention: AttentionMetadata,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The metadata in the order of the operators' arguments."""
    return attention.blocks, attention.starts, attention.lengths, attention.first_rows, attention.block_size


def _mix_attention(layer: Attention, joint: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    spec = layer.spec
    is_cut = spec.chunk_size is not None and batch.attention.longest > spec.chunk_size
    is_other = spec.slopes is not None or spec.kv_source is not None or spec.v_head_dim is not None
    is_other = is_other or spec.difference is not None
    if spec.qk_norm_after_rope or is_other or is_cut:
        return Attention.mix(layer, joint, batch, state)
    norm, over, q_weight, k_weight = spec.qk_norm, 0, None, None
    given = joint
    if layer.q_norm is not None and layer.k_norm is not None:
        if layer.q_norm.spec.kind == "rms" and layer.q_norm.is_shared:
            over = _NORM_PER_HEAD if spec.qk_norm_per_head else _NORM_OVER_ALL
            q_weight, k_weight = layer.q_norm.weight, layer.k_norm.weight
        else:
            q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
            query, key, value = torch.tensor_split(joint, (q_width, q_width + kv_width), 1)
            joint = torch.cat((*(part.flatten(1) for part in layer.normed(query, key)), value), 1)
    cos, sin = (None, None) if layer.rope is None else layer.rope.step(batch)
    mixed: torch.Tensor = torch.ops.blazr.gqa_attention.default(
        joint,
        state["k"],
        state["v"],
        batch.slot_mapping,
        *context_arguments(batch.attention),
        cos,
        sin,
        layer.rope is not None and layer.rope.spec.interleaved,
        q_weight,
        k_weight,
        over,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        spec.scale,
        spec.sliding_window or 0,
        spec.softcap or 0.0,
        layer.sinks,
    )
    # Runs of tokens that see each other both ways are computed once more, in PyTorch; the others stay as they are.
    layer.mix_whole_spans(mixed, given, batch, state)
    return mixed.flatten(1)


def _mix_latent_attention(
    layer: MultiHeadLatentAttention,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    rows: torch.Tensor,
    batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:
    """One call for the rows of the cache, one for all decodes, one per chunk."""
    spec = layer.spec
    norm, weight = spec.kv_a_norm, None
    if layer.kv_a_norm is not None:
        if layer.kv_a_norm.spec.kind == "rms":
            weight = layer.kv_a_norm.weight
        else:
            latent, k_rope = rows[:, : spec.kv_lora_rank], rows[:, spec.kv_lora_rank :]
            rows, norm = torch.cat((layer.kv_a_norm(latent), k_rope), -1), None
    cos, sin = (None, None) if layer.rope is None else layer.rope.step(batch)
    q_rope = torch.ops.blazr.mla_prepare.default(
        q_rope,
        rows,
        state["latent"],
        batch.slot_mapping,
        cos,
        sin,
        layer.rope is not None and layer.rope.spec.interleaved,
        weight,
        norm is not None,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
    )
    decodes = batch.num_decodes
    parts: list[torch.Tensor] = []
    if decodes:
        contexts = batch.attention.part(0, decodes)
        parts.append(_attend_absorbed(layer, q_nope[:decodes], q_rope[:decodes], state, contexts))
    for chunk in batch.prefills:
        span = slice(chunk.start, chunk.stop)
        contexts = batch.attention.part(chunk.sequence, chunk.sequence + 1)
        if is_absorbed(spec, chunk.stop - chunk.start, chunk.context_len):
            parts.append(_attend_absorbed(layer, q_nope[span], q_rope[span], state, contexts))
            continue
        key, value = layer.expand(state["latent"].index_select(0, chunk_slots(batch, chunk)))
        # They lie in the order of the tokens: one block.
        zero = contexts.starts.new_zeros(1)
        contexts = AttentionMetadata(zero.int(), zero, contexts.lengths, contexts.first_rows, chunk.length)
        query = torch.cat((q_nope[span], q_rope[span]), -1)
        mixed = torch.ops.blazr.paged_attention.default(
            query, key, value, *context_arguments(contexts), spec.v_head_dim, spec.scale, 0, 0.0
        )
        parts.append(mixed.flatten(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_absorbed(
    layer: MultiHeadLatentAttention,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    state: LayerState,
    contexts: AttentionMetadata,
) -> torch.Tensor:
    """(n, H, N) and (n, H, R) over the cached rows of the sequences, to (n, H · W)."""
    mixed: torch.Tensor = torch.ops.blazr.mla_decode.default(
        q_nope,
        q_rope,
        layer.k_b_proj.weight,
        layer.v_b_proj.weight,
        state["latent"],
        *context_arguments(contexts),
        layer.spec.scale,
    )
    return mixed


def is_absorbed(spec: MLASpec, count: int, context_len: int) -> bool:
    """Whether MLA's absorbed form costs less for ``count`` new tokens behind ``context_len`` others.

    Multiplications per head: expanded m · r · (N + W) for keys and values, then count · m · (N + R + W); absorbed
    count · r · (N + W) for queries and results, and count · m · (2r + R) between. A function of the chunk alone.
    """
    rank, widths = spec.kv_lora_rank, spec.qk_nope_head_dim + spec.v_head_dim
    total = count + context_len
    wider = max(2 * rank - widths, 0)
    return count * (wider * total + rank * widths) < total * rank * widths


# --- recurrent mixers ---------------------------------------------------------------------------


def batch_runs(batch: ForwardBatch) -> torch.Tensor:
    """(B, 4) int64, one row per sequence: first row, number of rows, state slot, 1 if its state starts at zero.

    What the recurrent kernels know of a step; made once and shared by its layers.
    """
    runs: torch.Tensor | None = batch.shared.get(batch_runs)
    if runs is None:
        decodes = batch.num_decodes
        runs = torch.zeros(decodes + len(batch.prefills), 4, dtype=torch.int64)
        if decodes:
            torch.arange(decodes, out=runs[:decodes, 0])
            runs[:decodes, 1].fill_(1)
            runs[:decodes, 2].copy_(batch.decode_state_slots)
        for row, chunk in enumerate(batch.prefills, decodes):
            runs[row] = torch.tensor([chunk.start, chunk.stop - chunk.start, chunk.state_slot, not chunk.context_len])
        batch.shared[batch_runs] = runs
    return runs


def _convolve(layer: CausalConv1d, rows: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor) -> torch.Tensor:
    convolved: torch.Tensor = torch.ops.blazr.causal_conv.default(
        rows, batch_runs(batch), conv_state, *_conv_arguments(layer)
    )
    return convolved


def _conv_arguments(layer: CausalConv1d) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Taps (K, C), bias and the activation's number."""
    return layer.taps(), None if layer.bias is None else layer.bias.float(), _ACTIVATIONS[layer.activation]


def _normalise_gated(layer: GatedNorm, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    normed: torch.Tensor = torch.ops.blazr.gated_norm.default(values, gate, *_gated_norm_arguments(layer))
    return normed


def _gated_norm_arguments(layer: GatedNorm) -> tuple[torch.Tensor | None, float, float, int, int]:
    """Weight, eps, offset, group size and order (0: no norm, 1: after the gate, 2: before it, 3: before a sigmoid)."""
    if layer.spec is None:
        return None, 0.0, 0.0, layer.group_size, 0
    weight = None if layer.weight is None else layer.repeated_weight()
    order = 3 if layer.gate == "sigmoid" else 2 if layer.norm_before_gate else 1
    return weight, layer.spec.eps, layer.spec.offset, layer.group_size, order


def _mix_mamba1(
    layer: Mamba1Mixer, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, gate: torch.Tensor,
    batch: ForwardBatch, state: LayerState,
) -> torch.Tensor:  # fmt: skip
    limit = layer.spec.state_clamp
    mixed: torch.Tensor = torch.ops.blazr.mamba1_mix.default(
        x, dt, b, c, gate, batch_runs(batch), state["ssm_state"], layer.dt_proj.bias.float(), layer.decay_rates(),
        layer.D.float(), math.inf if limit is None else limit,
    )  # fmt: skip
    return mixed


def _mix_mamba2(layer: Mamba2Mixer, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    spec = layer.spec
    mixed: torch.Tensor = torch.ops.blazr.mamba2_mix.default(
        projected, batch_runs(batch), state["conv_state"], state["ssm_state"], *_conv_arguments(layer.conv1d),
        layer.decay_rates(), layer.dt_bias.float(), layer.D.float(), spec.dt_min, spec.dt_max, spec.num_groups,
        *_gated_norm_arguments(layer.norm),
    )  # fmt: skip
    return mixed


def _mix_delta(
    layer: GatedDelta, projected: torch.Tensor, ba: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> torch.Tensor:
    mixed: torch.Tensor = torch.ops.blazr.delta_mix.default(
        projected, ba, batch_runs(batch), state["conv_state"], state["delta_state"], layer.conv1d.taps(),
        layer.decay_rates(), layer.dt_bias.float(), layer.spec.beta_scale, layer.spec.num_key_heads,
        *_gated_norm_arguments(layer.norm),
    )  # fmt: skip
    return mixed


def _mix_channel_delta(
    layer: KimiDelta, qkv: torch.Tensor, b: torch.Tensor, decay: torch.Tensor, gate: torch.Tensor,
    batch: ForwardBatch, state: LayerState,
) -> torch.Tensor:  # fmt: skip
    norm = layer.spec.gated_norm
    mixed: torch.Tensor = torch.ops.blazr.channel_delta_mix.default(
        qkv, b, decay, gate, batch_runs(batch), state["conv_state"], state["delta_state"], layer.conv1d.taps(),
        layer.decay_rates(), layer.dt_bias.float(), layer.spec.least_log_decay or 0.0, layer.norm.repeated_weight(),
        norm.eps, norm.offset,
    )  # fmt: skip
    return mixed


def _mix_lightning(
    layer: LightningAttention, qkv: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> torch.Tensor:
    """The recurrence of Mamba-2 without step sizes: values enter, keys are B, queries are C."""
    query, key, value = layer.heads(qkv)
    log_decay = layer.log_decays(qkv.device).expand(value.shape[:2]).contiguous()
    ones, zeros = torch.ones_like(log_decay), torch.zeros_like(log_decay)
    mixed: torch.Tensor = torch.ops.blazr.recur.default(
        value, ones, log_decay, zeros, key, query, batch_runs(batch), state["linear_state"], None, None, None
    )
    return mixed.flatten(1)


def _mix_rg_lru(layer: RGLRU, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    enter, decay, (taps, bias, _) = layer.input_gate, layer.decay_gate, _conv_arguments(layer.conv1d)
    mixed: torch.Tensor = torch.ops.blazr.rg_lru_mix.default(
        projected, batch_runs(batch), state["conv_state"], state["lru_state"], taps, bias, enter.weight, enter.bias,
        decay.weight, decay.bias, layer.strengths(), _ACTIVATIONS[layer.spec.activation],
    )  # fmt: skip
    return mixed


def _mix_mlstm(
    layer: MLSTM, projected: torch.Tensor, gates: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> torch.Tensor:
    spec = layer.spec
    mixed: torch.Tensor = torch.ops.blazr.mlstm_mix.default(
        projected, gates, batch_runs(batch), state["memory_state"], state["norm_state"], state["max_state"],
        layer.norm.weight, spec.gate_cap, spec.norm_eps, spec.eps,
    )  # fmt: skip
    return mixed


def _shift_tokens(
    layer: TokenShift, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> tuple[torch.Tensor, ...]:
    shifted: torch.Tensor = torch.ops.blazr.token_shift.default(
        hidden, batch_runs(batch), state["shift_state"], layer.stacked_shares()
    )
    return shifted.unbind(0)


def _gate_by_sigmoid(layer: ChannelMix, receptance: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    gated: torch.Tensor = torch.ops.blazr.sigmoid_gate.default(receptance, values)
    return gated


def _mix_wkv(
    layer: TimeMix, key: torch.Tensor, value: torch.Tensor, receptance: torch.Tensor, batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:  # fmt: skip
    mixed: torch.Tensor = torch.ops.blazr.wkv_mix.default(
        key, value, receptance, batch_runs(batch), state["wkv_state"], state["weight_state"], state["max_state"],
        layer.log_decays(), layer.bonus,
    )  # fmt: skip
    return mixed


def _mix_mamba3(
    layer: Mamba3Mixer, hidden: torch.Tensor, xbc: torch.Tensor, dt: torch.Tensor, batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:  # fmt: skip
    spec, runs = layer.spec, batch_runs(batch)
    if layer.conv1d is not None:
        xbc = layer.conv1d(xbc, batch, state["conv_state"])
    turns = None if layer.theta_proj is None else layer.theta_proj(hidden)
    weight = layer.bc_norm.weight
    x, b, c, weights = torch.ops.blazr.mamba3_prepare.default(
        xbc, dt, layer.lambda_proj(hidden), turns, runs, None if turns is None else state["angle_state"],
        layer.conv1d is not None, state["ssm_state"].shape[0], spec.num_groups, spec.state_size,
        None if weight is None else weight.float(), spec.bc_norm.eps, layer.b_bias.float(), layer.c_bias.float(),
        layer.decay_rates(), layer.dt_bias.float(), layer.D.float(), spec.dt_min, spec.dt_max,
    )  # fmt: skip
    if layer.mimo_x_up is not None:
        x = layer.mimo_x_up(x.to(hidden.dtype)).float()
    enter, log_decay, skip, later = weights.unbind(0)
    y: torch.Tensor = torch.ops.blazr.recur.default(
        x, enter, log_decay, skip, b, c, runs, state["ssm_state"], later, state["x_state"], state["b_state"]
    )
    return y


# --- residual streams ---------------------------------------------------------------------------


def _balance_streams(layer: SinkhornConnection, logits: torch.Tensor) -> torch.Tensor:
    balanced: torch.Tensor = torch.ops.blazr.balance_streams.default(logits, layer.spec.iterations, layer.spec.eps)
    return balanced


# --- mixture of experts -------------------------------------------------------------------------


def _choose_experts(layer: Router, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    spec = layer.spec
    has_floor = spec.num_expert_groups > 1 and spec.group_floor != -math.inf
    if spec.scoring not in ("softmax", "sigmoid") or spec.ranks_logits or has_floor:
        return Router.choose(layer, logits)
    weights, chosen = torch.ops.blazr.choose_experts.default(
        logits,
        layer.correction_bias,
        spec.top_k,
        spec.scoring == "softmax",
        spec.normalise_top_k,
        spec.normalise_eps,
        spec.routed_scaling_factor,
        spec.num_expert_groups,
        spec.top_k_groups,
        spec.group_score == "top2",
    )
    return weights, chosen


def _mix_experts(layer: Experts, hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    first, second = (layer.packed.get(leaf) for leaf in layer.stacks)
    if not layer.is_plain or not isinstance(first, NativePacked) or not isinstance(second, NativePacked):
        return Experts.mix(layer, hidden, weights, chosen)
    spec = layer.spec
    mixed: torch.Tensor = torch.ops.blazr.expert_mix.default(
        hidden,
        weights,
        chosen,
        first.data,
        first.scales,
        first.format,
        first.group,
        second.data,
        second.scales,
        second.format,
        second.group,
        spec.num_experts,
        spec.intermediate_size,
        spec.gated,
        _ACTIVATIONS[spec.activation],
    )
    return mixed


BFLOAT16_STATES = frozenset(
    {
        *("conv_state", "ngram_conv_state", "token_conv_state", "channel_conv_state", "shift_state"),
        *("ssm_state", "x_state", "b_state", "linear_state", "delta_state"),
        *("lru_state", "memory_state", "wkv_state"),
    }
)
"""Recurrent states that the kernels read and write in float32 and in bfloat16: ``States`` of ``src/recurrent.h``."""

FORMS: Mapping[type[nn.Module], Mapping[str, Callable[..., Any]]] = {
    Norm: {"normalise": _normalise, "add_normalise": _add_normalise},
    MLP: {"activate": _activate},
    Attention: {"mix": _mix_attention},
    ConvolvedAttention: {"mix": _mix_attention},
    MultiHeadLatentAttention: {"mix": _mix_latent_attention},
    CausalConv1d: {"convolve": _convolve},
    GatedNorm: {"normalise": _normalise_gated},
    Mamba1Mixer: {"mix": _mix_mamba1},
    Mamba2Mixer: {"mix": _mix_mamba2},
    Mamba3Mixer: {"mix": _mix_mamba3},
    GatedDelta: {"mix": _mix_delta},
    KimiDelta: {"mix": _mix_channel_delta},
    LightningAttention: {"mix": _mix_lightning},
    RGLRU: {"mix": _mix_rg_lru},
    MLSTM: {"mix": _mix_mlstm},
    TimeMix: {"shift": _shift_tokens, "mix": _mix_wkv},
    ChannelMix: {"shift": _shift_tokens, "gate": _gate_by_sigmoid},
    Router: {"choose": _choose_experts},
    SinkhornConnection: {"balance": _balance_streams},
    Experts: {"mix": _mix_experts, "activate": _activate},
}
"""Layer type to the methods that are replaced, by name."""
