"""oxidizr's forward pass in float64, token by token, straight from its definition; nothing here comes from the layers.

A checkpoint is a dictionary of arrays under the trainer's own tensor names plus an ``OxidizrConfig``. One
sequence at a time, no caches: attention looks back over stored keys, a Mamba layer carries its state along.
Slow on purpose: every formula should be readable beside the fact sheet it was written from.

Letters: h hidden, V vocabulary, I inner width, H heads, P head width, S state size, G groups, K kernel, R MIMO rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray
Weights = dict[str, Array]


@dataclass(frozen=True)
class OxidizrConfig:
    """What to build. ``layers`` holds one of gqa, mla, mamba1, mamba2, mamba3 for each layer."""

    layers: tuple[str, ...]
    hidden_size: int = 32
    vocab_size: int = 80
    heads: int = 4
    kv_heads: int = 2
    kv_latent: int = 12
    q_latent: int = 20
    d_rope: int = 6
    experts: int = 4
    top_k: int = 2
    intermediate: int = 40
    mamba_heads: int = 8
    state_size: int = 10
    groups: int = 1
    expand: int = 2
    conv_kernel: int = 4
    complex_rope: bool = True
    mimo_rank: int = 0
    use_conv: bool = False
    rope_theta: float = 10000.0
    a_override: bool = False

    @property
    def inner(self) -> int:
        return self.hidden_size * self.expand

    @property
    def mamba_head_dim(self) -> int:
        return self.inner // self.mamba_heads

    @property
    def conv_width(self) -> int:
        return self.inner + 2 * self.groups * self.state_size

    def to_json(self) -> dict:
        """config.json with the keys that the trainer writes (and the two that it can't be read without)."""
        values = {
            "hidden_size": self.hidden_size,
            "num_layers": len(self.layers),
            "vocab_size": self.vocab_size,
            "num_attention_heads": self.heads,
            "rms_norm_eps": 1e-5,
            "max_seq_len": 128,
            "intermediate_size": self.intermediate,
            "mamba2_n_groups": self.groups,
        }
        mamba = [number for number, kind in enumerate(self.layers) if kind.startswith("mamba")]
        if mamba:
            values["mamba_layers"] = mamba
        if {"mamba2", "mamba3"} & set(self.layers):
            values |= {
                "mamba2_num_heads": self.mamba_heads,
                "mamba2_head_dim": self.mamba_head_dim,
                "mamba2_state_size": self.state_size,
                "mamba2_chunk_size": 32,
                "mamba2_expand": self.expand,
                "mamba2_conv_kernel": self.conv_kernel,
            }
        if "mamba3" in self.layers:
            values |= {
                "mamba3_enabled": True,
                "mamba3_complex_rope": self.complex_rope,
                "mamba3_mimo_rank": self.mimo_rank,
                "mamba3_use_conv": self.use_conv,
            }
        if "mla" in self.layers:
            values |= {
                "kv_latent_dim": self.kv_latent,
                "q_latent_dim": self.q_latent,
                "d_rope": self.d_rope,
                "num_experts": self.experts,
                "experts_per_tok": self.top_k,
                "shared_expert_enabled": False,
            }
        return values


# --- checkpoints -------------------------------------------------------------------------------


def tensor_shapes(config: OxidizrConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint."""
    h, f, vocab = config.hidden_size, config.intermediate, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, h),
        "norm.weight": (h,),
        "lm_head.weight": (vocab, h),
    }
    for number, kind in enumerate(config.layers):
        part = {"gqa": _gqa_shapes, "mla": _mla_shapes, "mamba1": _mamba1_shapes}.get(kind, _mamba23_shapes)
        shapes |= {f"layers.{number}.{name}": shape for name, shape in part(config, kind, h, f).items()}
    return shapes


def _swiglu_shapes(prefix: str, h: int, f: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (f, h),
        f"{prefix}.up_proj.weight": (f, h),
        f"{prefix}.down_proj.weight": (h, f),
    }


def _gqa_shapes(config: OxidizrConfig, kind: str, h: int, f: int) -> dict[str, tuple[int, ...]]:
    kv = config.kv_heads * h // config.heads
    return {
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "self_attn.q_proj.weight": (h, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
        "self_attn.o_proj.weight": (h, h),
        **_swiglu_shapes("mlp", h, f),
    }


def _mla_shapes(config: OxidizrConfig, kind: str, h: int, f: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "self_attn.w_dkv.weight": (config.kv_latent, h),
        "self_attn.w_dq.weight": (config.q_latent, h),
        "self_attn.w_uq.weight": (h, config.q_latent),
        "self_attn.w_uk.weight": (h, config.kv_latent),
        "self_attn.w_uv.weight": (h, config.kv_latent),
        "self_attn.w_qr.weight": (config.heads * config.d_rope, h),
        "self_attn.w_kr.weight": (config.d_rope, h),
        "self_attn.o_proj.weight": (h, h),
        "moe.router.gate.weight": (config.experts, h),
        **_swiglu_shapes("moe.shared_expert", h, f),
    }
    for expert in range(config.experts):
        shapes |= _swiglu_shapes(f"moe.experts.{expert}", h, f)
    return shapes


def _mamba1_shapes(config: OxidizrConfig, kind: str, h: int, f: int) -> dict[str, tuple[int, ...]]:
    return {
        "norm.weight": (h,),
        "mamba.in_proj.weight": (4 * h, h),
        "mamba.conv1d.weight": (2 * h, 1, 4),
        "mamba.conv1d.bias": (2 * h,),
        "mamba.x_proj.weight": (2 * h + 32, 2 * h),
        "mamba.dt_proj.weight": (2 * h, 2 * h),
        "mamba.dt_proj.bias": (2 * h,),
        "mamba.a_log": (2 * h, 16),
        "mamba.d": (2 * h,),
        "mamba.out_proj.weight": (h, 2 * h),
    }


def _mamba23_shapes(config: OxidizrConfig, kind: str, h: int, f: int) -> dict[str, tuple[int, ...]]:
    inner, heads, size, width = config.inner, config.mamba_heads, config.state_size, config.mamba_head_dim
    rows = inner + config.conv_width + heads
    mixer: dict[str, tuple[int, ...]] = {
        "in_proj.weight": (rows, h),
        "in_proj.bias": (rows,),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (heads,),
        "norm.weight": (inner,),
        "out_proj.weight": (h, inner),
        "out_proj.bias": (h,),
    }
    if kind == "mamba2" or config.use_conv:
        mixer |= {"conv1d.weight": (config.conv_width, 1, config.conv_kernel), "conv1d.bias": (config.conv_width,)}
    if kind == "mamba3":
        mixer |= {
            "lambda_proj.weight": (heads, h),
            "lambda_proj.bias": (heads,),
            "b_bias": (heads, size),
            "c_bias": (heads, size),
            "bc_norm.weight": (size,),
        }
        if config.complex_rope:
            mixer |= {"theta_proj.weight": (heads * size // 2, h), "theta_proj.bias": (heads * size // 2,)}
        if config.mimo_rank:
            wide = width * config.mimo_rank
            mixer |= {
                "mimo_x_up.weight": (wide, width),
                "mimo_x_up.bias": (wide,),
                "mimo_x_down.weight": (width, wide),
                "mimo_x_down.bias": (width,),
            }
    return {
        f"{kind}.norm.weight": (h,),
        f"{kind}.norm.bias": (h,),
        **{f"{kind}.mixer.{name}": shape for name, shape in mixer.items()},
    }


def random_weights(config: OxidizrConfig, seed: int = 0) -> Weights:
    """Weights that make every part matter: no ones, no zeros, Δ on both sides of both clamps."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in tensor_shapes(config).items():
        leaf = name.rsplit(".", 2)[-1] if not name.endswith((".weight", ".bias")) else ".".join(name.split(".")[-2:])
        if leaf in ("A_log", "a_log"):
            value = rng.uniform(-1.0, 3.0, shape)
        elif leaf == "dt_bias":
            value = rng.uniform(-9.0, 0.5, shape)
        elif leaf == "dt_proj.bias":
            value = rng.uniform(-4.0, 0.0, shape)
        elif leaf.endswith("norm.weight") or leaf in ("D", "d", "b_bias", "c_bias"):
            value = rng.uniform(0.3, 1.7, shape)
        elif leaf == "conv1d.weight":
            value = rng.normal(0.0, 0.6, shape)
        elif leaf == "theta_proj.weight":
            value = rng.normal(0.0, 4.0, shape)
        elif leaf.endswith("bias"):
            value = rng.normal(0.0, 0.3, shape)
        else:
            value = rng.normal(0.0, 0.9 / np.sqrt(shape[-1]), shape)
        weights[name] = value.astype(np.float32)
    return weights


def write_checkpoint(directory: Path, config: OxidizrConfig, weights: Weights) -> None:
    """A directory as the trainer packs it."""
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config.to_json()))


# --- forward pass ------------------------------------------------------------------------------


def forward(config: OxidizrConfig, weights: Weights, ids: list[int]) -> Array:
    """(T,) token ids of one sequence to (T, V) logits in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["embed_tokens.weight"][ids]
    for number, kind in enumerate(config.layers):
        layer = {name[len(f"layers.{number}.") :]: v for name, v in w.items() if name.startswith(f"layers.{number}.")}
        if kind == "gqa":
            x = x + gqa(config, layer, rms_norm(x, layer["input_layernorm.weight"], 1e-5))
            x = x + swiglu(layer, "mlp", rms_norm(x, layer["post_attention_layernorm.weight"], 1e-5))
        elif kind == "mla":
            x = x + mla(config, layer, rms_norm(x, layer["input_layernorm.weight"], 1e-5))
            x = x + moe(config, layer, rms_norm(x, layer["post_attention_layernorm.weight"], 1e-5))
        elif kind == "mamba1":
            x = x + mamba1(layer, rms_norm(x, layer["norm.weight"], 1e-5))
        else:
            normed = layer_norm(x, layer[f"{kind}.norm.weight"], layer[f"{kind}.norm.bias"], 1e-6)
            prefix = f"{kind}.mixer."
            mixer = {name[len(prefix) :]: value for name, value in layer.items() if name.startswith(prefix)}
            x = x + (mamba2 if kind == "mamba2" else mamba3)(config, mixer, normed)
    return rms_norm(x, w["norm.weight"], 1e-5) @ w["lm_head.weight"].T


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def rope(vector: Array, position: int, theta: float) -> Array:
    """Half-split rotation of one vector: pairs (i, i + D/2)."""
    half = vector.shape[0] // 2
    out = np.empty_like(vector)
    for i in range(half):
        angle = position * theta ** (-2.0 * i / vector.shape[0])
        a, b = vector[i], vector[i + half]
        out[i] = a * np.cos(angle) - b * np.sin(angle)
        out[i + half] = b * np.cos(angle) + a * np.sin(angle)
    return out


def swiglu(layer: Weights, prefix: str, z: Array) -> Array:
    gate, up = z @ layer[f"{prefix}.gate_proj.weight"].T, z @ layer[f"{prefix}.up_proj.weight"].T
    return (silu(gate) * up) @ layer[f"{prefix}.down_proj.weight"].T


def gqa(config: OxidizrConfig, layer: Weights, z: Array) -> Array:
    heads, kv_heads, width = config.heads, config.kv_heads, config.hidden_size // config.heads
    query = (z @ layer["self_attn.q_proj.weight"].T).reshape(-1, heads, width)
    key = (z @ layer["self_attn.k_proj.weight"].T).reshape(-1, kv_heads, width)
    value = (z @ layer["self_attn.v_proj.weight"].T).reshape(-1, kv_heads, width)
    out = np.zeros_like(query)
    for t in range(len(z)):
        for j in range(heads):
            source = j // (heads // kv_heads)
            q = rope(query[t, j], t, config.rope_theta)
            scores = [q @ rope(key[r, source], r, config.rope_theta) / np.sqrt(width) for r in range(t + 1)]
            out[t, j] = softmax(np.array(scores)) @ value[: t + 1, source]
    return out.reshape(len(z), -1) @ layer["self_attn.o_proj.weight"].T


def mla(config: OxidizrConfig, layer: Weights, z: Array) -> Array:
    heads, width, theta = config.heads, config.hidden_size // config.heads, config.rope_theta
    latent = z @ layer["self_attn.w_dkv.weight"].T
    query = (z @ layer["self_attn.w_dq.weight"].T @ layer["self_attn.w_uq.weight"].T).reshape(-1, heads, width)
    key = (latent @ layer["self_attn.w_uk.weight"].T).reshape(-1, heads, width)
    value = (latent @ layer["self_attn.w_uv.weight"].T).reshape(-1, heads, width)
    query_rope = (z @ layer["self_attn.w_qr.weight"].T).reshape(-1, heads, config.d_rope)
    key_rope = z @ layer["self_attn.w_kr.weight"].T
    turned_keys = [rope(key_rope[r], r, theta) for r in range(len(z))]
    out = np.zeros_like(query)
    for t in range(len(z)):
        for j in range(heads):
            turned = rope(query_rope[t, j], t, theta)
            scores = [query[t, j] @ key[r, j] + turned @ turned_keys[r] for r in range(t + 1)]
            weights = softmax(np.array(scores) / np.sqrt(width + config.d_rope))
            out[t, j] = weights @ value[: t + 1, j]
    return out.reshape(len(z), -1) @ layer["self_attn.o_proj.weight"].T


def moe(config: OxidizrConfig, layer: Weights, z: Array) -> Array:
    out = swiglu(layer, "moe.shared_expert", z)
    for t in range(len(z)):
        logits = layer["moe.router.gate.weight"] @ z[t]
        chosen = sorted(range(config.experts), key=lambda e: (-logits[e], e))[: config.top_k]
        for expert, weight in zip(chosen, softmax(logits[chosen]), strict=True):
            out[t] += weight * swiglu(layer, f"moe.experts.{expert}", z[t])
    return out


def causal_conv(rows: Array, weight: Array, bias: Array) -> Array:
    """y_t = b + Σ_j w[:, 0, j] · x_{t-K+1+j}, then silu."""
    kernel = weight.shape[2]
    out = np.zeros_like(rows)
    for t in range(len(rows)):
        out[t] = bias
        for j in range(kernel):
            source = t - kernel + 1 + j
            if source >= 0:
                out[t] += weight[:, 0, j] * rows[source]
    return silu(out)


def mamba1(layer: Weights, z: Array) -> Array:
    """A is positive, as the trainer has it; only the clamp of ±30 bounds the state."""
    projected = z @ layer["mamba.in_proj.weight"].T
    width = projected.shape[1] // 2
    x = causal_conv(projected[:, :width], layer["mamba.conv1d.weight"], layer["mamba.conv1d.bias"])
    gate = projected[:, width:]
    parts = x @ layer["mamba.x_proj.weight"].T
    dt, b, c = parts[:, :width], parts[:, width : width + 16], parts[:, width + 16 :]
    delta = softplus(dt @ layer["mamba.dt_proj.weight"].T + layer["mamba.dt_proj.bias"])
    a = np.exp(-layer["mamba.a_log"])
    state, out = np.zeros_like(a), np.zeros_like(x)
    for t in range(len(z)):
        state = np.clip(np.exp(delta[t][:, None] * a) * state + (delta[t] * x[t])[:, None] * b[t][None, :], -30.0, 30.0)
        out[t] = state @ c[t] + layer["mamba.d"] * x[t]
    return (out * silu(gate)) @ layer["mamba.out_proj.weight"].T


def head_rates(config: OxidizrConfig, mixer: Weights) -> Array:
    if config.a_override:
        return -np.arange(1.0, config.mamba_heads + 1)
    return -np.clip(np.exp(mixer["A_log"]), 1e-6, 1e6)


def gated_output(config: OxidizrConfig, mixer: Weights, y: Array, gate: Array) -> Array:
    """Gate, then RMSNorm over all of I, then out_proj."""
    normed = rms_norm(y.reshape(len(y), -1) * silu(gate), mixer["norm.weight"], 1e-6)
    return normed @ mixer["out_proj.weight"].T + mixer["out_proj.bias"]


def mamba2(config: OxidizrConfig, mixer: Weights, u: Array) -> Array:
    inner, heads, groups, size = config.inner, config.mamba_heads, config.groups, config.state_size
    projected = u @ mixer["in_proj.weight"].T + mixer["in_proj.bias"]
    gate, xbc, dt = np.split(projected, [inner, inner + config.conv_width], axis=1)
    xbc = causal_conv(xbc, mixer["conv1d.weight"], mixer["conv1d.bias"])
    x = xbc[:, :inner].reshape(-1, heads, config.mamba_head_dim)
    b = xbc[:, inner : inner + groups * size].reshape(-1, groups, size)
    c = xbc[:, inner + groups * size :].reshape(-1, groups, size)
    delta = np.clip(softplus(dt + mixer["dt_bias"]), 0.001, 0.1)
    a = head_rates(config, mixer)
    state, y = np.zeros((heads, config.mamba_head_dim, size)), np.zeros_like(x)
    for t in range(len(u)):
        for j in range(heads):
            group = j // (heads // groups)
            state[j] = np.exp(delta[t, j] * a[j]) * state[j] + delta[t, j] * np.outer(x[t, j], b[t, group])
            y[t, j] = state[j] @ c[t, group] + mixer["D"][j] * x[t, j]
    return gated_output(config, mixer, y, gate)


def mamba3(config: OxidizrConfig, mixer: Weights, u: Array) -> Array:
    inner, heads, groups, size = config.inner, config.mamba_heads, config.groups, config.state_size
    width, rank = config.mamba_head_dim, max(config.mimo_rank, 1)
    projected = u @ mixer["in_proj.weight"].T + mixer["in_proj.bias"]
    gate, xbc, dt = np.split(projected, [inner, inner + config.conv_width], axis=1)
    if config.use_conv:
        xbc = causal_conv(xbc, mixer["conv1d.weight"], mixer["conv1d.bias"])
        x = xbc[:, :inner]
    else:
        x = silu(xbc[:, :inner])
    x = x.reshape(-1, heads, width)
    b_groups = xbc[:, inner : inner + groups * size].reshape(-1, groups, size)
    c_groups = xbc[:, inner + groups * size :].reshape(-1, groups, size)
    repeats = heads // groups
    b = rms_norm(np.repeat(b_groups, repeats, axis=1), mixer["bc_norm.weight"], 1e-6) + mixer["b_bias"]
    c = rms_norm(np.repeat(c_groups, repeats, axis=1), mixer["bc_norm.weight"], 1e-6) + mixer["c_bias"]
    share = sigmoid(u @ mixer["lambda_proj.weight"].T + mixer["lambda_proj.bias"])
    delta = np.clip(softplus(dt + mixer["dt_bias"]), 0.001, 0.1)
    if config.complex_rope:
        theta = (u @ mixer["theta_proj.weight"].T + mixer["theta_proj.bias"]).reshape(-1, heads, size // 2)
        angle = np.zeros((heads, size // 2))
        for t in range(len(u)):
            angle = angle + delta[t][:, None] * theta[t]
            b[t], c[t] = turn_pairs(b[t], angle), turn_pairs(c[t], angle)
    if config.mimo_rank:
        x = x @ mixer["mimo_x_up.weight"].T + mixer["mimo_x_up.bias"]
    a = head_rates(config, mixer)
    state, y = np.zeros((heads, width * rank, size)), np.zeros_like(x)
    x_before, b_before = np.zeros((heads, width * rank)), np.zeros((heads, size))
    for t in range(len(u)):
        for j in range(heads):
            alpha = np.exp(delta[t, j] * a[j])
            beta = (1.0 - share[t, j]) * delta[t, j] * alpha
            gamma = share[t, j] * delta[t, j]
            state[j] = alpha * state[j] + beta * np.outer(x_before[j], b_before[j]) + gamma * np.outer(x[t, j], b[t, j])
            y[t, j] = state[j] @ c[t, j] + mixer["D"][j] * x[t, j]
        x_before, b_before = x[t], b[t]
    if config.mimo_rank:
        y = y @ mixer["mimo_x_down.weight"].T + mixer["mimo_x_down.bias"]
    return gated_output(config, mixer, y, gate)


def turn_pairs(vectors: Array, angle: Array) -> Array:
    """(H, S) turned by (H, S/2) in adjacent pairs (2i, 2i+1)."""
    out = np.empty_like(vectors)
    even, odd = vectors[:, 0::2], vectors[:, 1::2]
    out[:, 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out
