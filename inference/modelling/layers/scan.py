"""State space recurrences: one token for many sequences, and many tokens of one sequence.

Tests compare the scans with plain loops over tokens. States are float32 and overwritten in place: what comes in is the
state before the first token, what stays is the state after the last. So a prompt may be cut anywhere.

Shape letters: L tokens of one sequence, n sequences with one token each, H heads, P head width,
S state size, G groups (head j belongs to group j div (H/G)), I channels.
"""

from __future__ import annotations

import torch

SSD_CHUNK = 64
"""Tokens that ``ssd_scan`` works on at once. Beyond 64 the (H, Q, Q) matrices outgrow the caches."""

SELECTIVE_CHUNK_VALUES = 1 << 21
"""Most state values that ``selective_scan`` keeps at once (8 MiB)."""

MAX_GROWTH_EXPONENT = 80.0
"""Greatest exponent of a growing state: e^80 is finite in float32, so that 0 · growth stays 0."""


# --- scalar decay per head: Mamba-2 and, with it, Mamba-3 ---------------------------------------


def ssd_scan(
    x: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """y_t = s_t C_t with s_t = exp(log_decay_t) s_{t-1} + x_t ⊗ B_t, in chunks of matrix products.

    With a_t the sum of log_decay up to t within a chunk:
    y_t = Σ_{r≤t} (C_t·B_r) e^{a_t-a_r} x_r + e^{a_t} s C_t, and s becomes e^{a_last} s + Σ_r e^{a_last-a_r} x_r ⊗ B_r.
    The sums are kept in float64: a strong decay early in a chunk would otherwise cost the later, small
    differences their digits.

    Shapes:
        x: (L, H, P) float32, already multiplied by the step size.
        log_decay: (L, H) float32, never positive.
        b, c: (L, G, S) float32.
        state: (H, P, S) float32, overwritten.

    Returns:
        (L, H, P) float32.

    Source: Dao and Gu 2024, https://arxiv.org/abs/2405.21060, section 6.
    """
    length, heads, width = x.shape
    groups, size = b.shape[1:]
    per_group = heads // groups
    out = torch.empty_like(x)
    grouped_state = state.view(groups, per_group * width, size)
    longest = min(SSD_CHUNK, length)
    future = torch.ones(longest, longest, dtype=torch.bool, device=x.device).triu_(1)
    for start in range(0, length, SSD_CHUNK):
        rows = slice(start, min(start + SSD_CHUNK, length))
        count = rows.stop - start
        sums = log_decay[rows].double().cumsum(0).t()  # (H, Q)
        b_rows, c_rows = b[rows].transpose(0, 1), c[rows].transpose(0, 1)  # (G, Q, S)
        x_rows = x[rows].transpose(0, 1)  # (H, Q, P)
        # Tokens of this chunk among themselves.
        mixing = (sums.unsqueeze(2) - sums.unsqueeze(1)).float()
        mixing.masked_fill_(future[:count, :count], -torch.inf).exp_()
        scores = torch.bmm(c_rows, b_rows.transpose(1, 2))
        mixing.view(groups, per_group, count, count).mul_(scores.unsqueeze(1))
        mixed = torch.bmm(mixing, x_rows)
        # What the state before the chunk still gives.
        carried = torch.bmm(c_rows, grouped_state.transpose(1, 2)).view(groups, count, per_group, width)
        since_start = sums.float().exp_()
        mixed.addcmul_(carried.transpose(1, 2).reshape(heads, count, width), since_start.unsqueeze(2))
        out[rows] = mixed.transpose(0, 1)
        # The state after the chunk.
        until_end = (sums[:, -1:] - sums).float().exp_()
        weighted = (x_rows * until_end.unsqueeze(2)).transpose(1, 2).reshape(groups, per_group * width, count)
        state.mul_(since_start[:, -1].view(heads, 1, 1))
        grouped_state.baddbmm_(weighted, b_rows)
    return out


def ssd_step(
    x: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """One token of each of n sequences.

    Shapes:
        x: (n, H, P) float32, already multiplied by the step size.
        log_decay: (n, H) float32.
        b, c: (n, G, S) float32.
        state: (n, H, P, S) float32, overwritten.

    Returns:
        (n, H, P) float32.
    """
    count, heads, width = x.shape
    groups, size = b.shape[1:]
    state.mul_(log_decay.exp()[:, :, None, None])
    by_group = state.view(count, groups, heads // groups * width, size)
    by_group.addcmul_(x.reshape(count, groups, -1, 1), b.unsqueeze(2))
    return torch.matmul(by_group, c.unsqueeze(3)).view(count, heads, width)


# --- trapezoidal: Mamba-3 ----------------------------------------------------------------------


def trapezoidal_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    share: torch.Tensor,
    log_decay: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    x_before: torch.Tensor,
    b_before: torch.Tensor,
) -> torch.Tensor:
    """y_t = s_t C_t with s_t = α s_{t-1} + (1-λ_t) Δ_t α x_{t-1} ⊗ B_{t-1} + λ_t Δ_t x_t ⊗ B_t, α = exp(log_decay_t).

    Token r enters twice, at r with λ_r Δ_r and at r+1 with (1-λ_{r+1}) Δ_{r+1} α; both decay alike from r
    on. So this is ``ssd_scan`` with the sum of both weights, less the second at t = r itself, where it
    hasn't entered yet; the token before the first is added to the incoming state.

    Shapes:
        x: (L, H, P) float32.
        delta: (L, H) step sizes Δ.
        share: (L, H) λ, from 0 to 1.
        log_decay: (L, H).
        b, c: (L, H, S).
        state: (H, P, S); x_before: (H, P); b_before: (H, S); all float32, overwritten.

    Returns:
        (L, H, P) float32.
    """
    now, later = share * delta, (1.0 - share) * delta
    state.addcmul_((later[0].unsqueeze(1) * x_before).unsqueeze(2), b_before.unsqueeze(1))
    weight = now.clone()
    weight[:-1] += later[1:]
    out = ssd_scan(x * weight.unsqueeze(2), log_decay, b, c, state)
    own = (now - weight) * (b * c).sum(-1)
    out.addcmul_(x, own.unsqueeze(2))
    x_before.copy_(x[-1])
    b_before.copy_(b[-1])
    return out


def trapezoidal_step(
    x: torch.Tensor,
    delta: torch.Tensor,
    share: torch.Tensor,
    log_decay: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    x_before: torch.Tensor,
    b_before: torch.Tensor,
) -> torch.Tensor:
    """One token of each of n sequences; shapes as in ``trapezoidal_scan`` with n for L, and n first in the states."""
    state.addcmul_((((1.0 - share) * delta).unsqueeze(2) * x_before).unsqueeze(3), b_before.unsqueeze(2))
    out = ssd_step(x * (share * delta).unsqueeze(2), log_decay, b, c, state)
    x_before.copy_(x)
    b_before.copy_(b)
    return out


# --- a decay for each channel and state entry: Mamba-1 -------------------------------------------


def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    limit: float | None = None,
) -> torch.Tensor:
    """y_t = s_t C_t with s_t = exp(Δ_t A) s_{t-1} + Δ_t x_t ⊗ B_t, kept within ± ``limit`` where there is one.

    A differs by state entry, so there is no form by matrix products; everything but one fused
    multiply-add per token is done for many tokens at once.

    Shapes:
        x, delta: (L, I) float32.
        a: (I, S) float32.
        b, c: (L, S) float32.
        state: (I, S) float32, overwritten.

    Returns:
        (L, I) float32.

    Source: Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 3.2.
    """
    step = max(1, min(256, SELECTIVE_CHUNK_VALUES // a.numel()))
    parts = []
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        growth = _growth(delta[rows], a)
        states = (delta[rows] * x[rows]).unsqueeze(2) * b[rows].unsqueeze(1)
        before = state
        for entering, factor in zip(states.unbind(0), growth.unbind(0), strict=True):
            entering.addcmul_(factor, before)
            if limit is not None:
                entering.clamp_(-limit, limit)
            before = entering
        state.copy_(before)
        parts.append(torch.bmm(states, c[rows].unsqueeze(2)).squeeze(2))
    return torch.cat(parts)


def selective_step(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    limit: float | None = None,
) -> torch.Tensor:
    """One token of each of n sequences; shapes as in ``selective_scan`` with n for L, state (n, I, S)."""
    state.mul_(_growth(delta, a))
    state.addcmul_((delta * x).unsqueeze(2), b.unsqueeze(1))
    if limit is not None:
        state.clamp_(-limit, limit)
    return torch.bmm(state, c.unsqueeze(2)).squeeze(2)


def _growth(delta: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """(n, I) step sizes to (n, I, S) exp(Δ A)."""
    return (delta.unsqueeze(2) * a).clamp_(max=MAX_GROWTH_EXPONENT).exp_()
