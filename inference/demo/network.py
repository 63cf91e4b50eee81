"""The demo model as a trainable network: Mamba-2, MLA with MoE, and GQA layers under oxidizr's tensor names.

Plain full-sequence forms of the arithmetic, with gradients; inference uses ``inference.modelling``, and a
test holds the two against each other. Shape letters: b batch, t positions, h hidden, H heads, P head width, S state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the demo model; layer kinds by position. The keys of config.json come from ``to_json``."""

    vocab_size: int = 1024
    hidden_size: int = 160
    layers: tuple[str, ...] = ("mamba2", "mamba2", "mla", "mamba2", "gqa", "mamba2")
    num_heads: int = 5
    num_kv_heads: int = 1
    intermediate_size: int = 256
    mamba_heads: int = 10
    mamba_head_dim: int = 32
    state_size: int = 32
    conv_kernel: int = 4
    kv_latent_dim: int = 64
    q_latent_dim: int = 80
    rope_dim: int = 16
    num_experts: int = 4
    top_k: int = 2
    expert_size: int = 96
    rope_theta: float = 10000.0
    max_seq_len: int = 1024

    @property
    def inner_size(self) -> int:
        """I: width inside a Mamba-2 layer."""
        return self.mamba_heads * self.mamba_head_dim

    def to_json(self) -> dict[str, object]:
        """config.json as the oxidizr trainer writes it, with the few keys it leaves out."""
        return {
            "hidden_size": self.hidden_size,
            "num_layers": len(self.layers),
            "vocab_size": self.vocab_size,
            "mamba2_num_heads": self.mamba_heads,
            "mamba2_head_dim": self.mamba_head_dim,
            "mamba2_state_size": self.state_size,
            "mamba2_chunk_size": 64,
            "mamba2_expand": self.inner_size // self.hidden_size,
            "mamba2_conv_kernel": self.conv_kernel,
            "mamba2_n_groups": 1,
            "num_attention_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.hidden_size // self.num_heads,
            "kv_latent_dim": self.kv_latent_dim,
            "q_latent_dim": self.q_latent_dim,
            "d_rope": self.rope_dim,
            "num_experts": self.num_experts,
            "experts_per_tok": self.top_k,
            "shared_expert_enabled": True,
            "intermediate_size": self.intermediate_size,
            "mamba_layers": [number for number, kind in enumerate(self.layers) if kind == "mamba2"],
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta,
            "max_seq_len": self.max_seq_len,
        }


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · w."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


def _linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _rope(values: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate pairs (i, i + D/2) of (b, t, heads, D) by position."""
    half = values.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half) / half)
    angles = torch.arange(values.shape[1])[:, None] * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = values[..., :half], values[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class GatedMLP(nn.Module):
    """down(silu(gate x) · up x)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden_size, intermediate_size)
        self.up_proj = _linear(hidden_size, intermediate_size)
        self.down_proj = _linear(intermediate_size, hidden_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class GQA(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        kv_width = width // config.num_heads * config.num_kv_heads
        self.q_proj, self.o_proj = _linear(width, width), _linear(width, width)
        self.k_proj, self.v_proj = _linear(width, kv_width), _linear(width, kv_width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        head = width // self.config.num_heads
        q = _rope(self.q_proj(hidden).view(batch, length, -1, head), self.config.rope_theta)
        k = _rope(self.k_proj(hidden).view(batch, length, -1, head), self.config.rope_theta)
        v = self.v_proj(hidden).view(batch, length, -1, head)
        mixed = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class MLA(nn.Module):
    """oxidizr's latent attention, expanded."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.w_dkv = _linear(width, config.kv_latent_dim)
        self.w_dq = _linear(width, config.q_latent_dim)
        self.w_uq = _linear(config.q_latent_dim, width)
        self.w_uk = _linear(config.kv_latent_dim, width)
        self.w_uv = _linear(config.kv_latent_dim, width)
        self.w_qr = _linear(width, config.num_heads * config.rope_dim)
        self.w_kr = _linear(width, config.rope_dim)
        self.o_proj = _linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        heads, theta = self.config.num_heads, self.config.rope_theta
        latent = self.w_dkv(hidden)

        def split(values: torch.Tensor) -> torch.Tensor:
            return values.view(batch, length, heads, -1)

        q = torch.cat([split(self.w_uq(self.w_dq(hidden))), _rope(split(self.w_qr(hidden)), theta)], -1)
        shared = _rope(self.w_kr(hidden).view(batch, length, 1, -1), theta).expand(-1, -1, heads, -1)
        k = torch.cat([split(self.w_uk(latent)), shared], -1)
        v = split(self.w_uv(latent))
        mixed = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Router(nn.Module):
    """Holds ``gate``, for the tensor's name."""

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.gate = _linear(hidden_size, num_experts)


class MoE(nn.Module):
    """Top-k experts and a shared one; every expert runs on every token, which costs little at this size."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = Router(config.hidden_size, config.num_experts)
        self.experts = nn.ModuleList(
            GatedMLP(config.hidden_size, config.expert_size) for _ in range(config.num_experts)
        )
        self.shared_expert = GatedMLP(config.hidden_size, config.expert_size)
        self.balance_loss = torch.zeros(())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.router.gate(hidden)
        values, chosen = logits.topk(self.top_k, -1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, values.softmax(-1))
        # Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equation 4: share of tokens times mean probability.
        share = (weights > 0).float().mean((0, 1)) / self.top_k
        self.balance_loss = (share * logits.softmax(-1).mean((0, 1))).sum() * len(self.experts)
        out: torch.Tensor = self.shared_expert(hidden)
        for number, expert in enumerate(self.experts):
            out = out + weights[..., number : number + 1] * expert(hidden)
        return out


class Mamba2Mixer(nn.Module):
    """Mamba-2 over a whole sequence as one chunk of the dual form."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        inner, heads = config.inner_size, config.mamba_heads
        conv_width = inner + 2 * config.state_size
        self.in_proj = _linear(config.hidden_size, inner + conv_width + heads, bias=True)
        self.conv1d = nn.Conv1d(conv_width, conv_width, config.conv_kernel, groups=conv_width)
        steps = torch.exp(torch.linspace(math.log(0.002), math.log(0.08), heads))
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 16, heads)))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(inner, 1e-6)
        self.out_proj = _linear(inner, config.hidden_size, bias=True)

    @property
    def conv_bias(self) -> torch.Tensor:
        """(C,)."""
        assert self.conv1d.bias is not None
        return self.conv1d.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        config = self.config
        batch, length, _ = hidden.shape
        inner, size, kernel = config.inner_size, config.state_size, config.conv_kernel
        gate, mixed, dt = self.in_proj(hidden).split([inner, inner + 2 * size, config.mamba_heads], -1)
        # Shifted multiply-adds: depthwise Conv1d is slow to train on CPUs.
        padded = functional.pad(mixed, (0, 0, kernel - 1, 0))
        weight = self.conv1d.weight[:, 0]
        mixed = self.conv_bias.expand_as(mixed)
        for tap in range(kernel):
            mixed = mixed + padded[:, tap : tap + length] * weight[:, tap]
        x, b, c = torch.split(functional.silu(mixed), [inner, size, size], -1)
        x = x.view(batch, length, config.mamba_heads, config.mamba_head_dim)
        dt = functional.softplus(dt + self.dt_bias).clamp(0.001, 0.1)
        decay = (dt * -self.A_log.exp().clamp(1e-6, 1e6)).cumsum(1)
        exponent = decay.transpose(1, 2)[..., :, None] - decay.transpose(1, 2)[..., None, :]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (c @ b.transpose(1, 2))[:, None] * exponent.masked_fill(~causal, -torch.inf).exp()
        y = (scores @ (x * dt[..., None]).transpose(1, 2)).transpose(1, 2) + x * self.D[:, None]
        out: torch.Tensor = self.out_proj(self.norm(y.reshape(batch, length, inner) * functional.silu(gate)))
        return out


class Mamba2Layer(nn.Module):
    """x + mixer(LayerNorm(x)), under oxidizr's names."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.mamba2 = nn.Module()
        self.mamba2.norm = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.mamba2.mixer = Mamba2Mixer(config)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = hidden + self.mamba2.mixer(self.mamba2.norm(hidden))  # type: ignore[operator]
        return out


class AttentionLayer(nn.Module):
    """Attention then a channel mixer, each with its norm."""

    def __init__(self, config: DemoConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, 1e-5)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, 1e-5)
        self.self_attn: nn.Module = MLA(config) if kind == "mla" else GQA(config)
        if kind == "mla":
            self.moe = MoE(config)
        else:
            self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        channel = self.moe if hasattr(self, "moe") else self.mlp
        out: torch.Tensor = hidden + channel(self.post_attention_layernorm(hidden))
        return out


class DemoNetwork(nn.Module):
    """The whole model; ``state_dict`` has oxidizr's tensor names."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(
            Mamba2Layer(config) if kind == "mamba2" else AttentionLayer(config, kind) for kind in config.layers
        )
        self.norm = RMSNorm(config.hidden_size, 1e-5)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(b, t) ids to (b, t, V) logits."""
        hidden = self.embed_tokens(token_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        out: torch.Tensor = self.lm_head(self.norm(hidden))
        return out

    def balance_loss(self) -> torch.Tensor:
        """Sum of the routers' load-balancing losses of the last forward pass."""
        losses = [module.balance_loss for module in self.modules() if isinstance(module, MoE)]
        return torch.stack(losses).sum() if losses else torch.zeros(())
