"""The recurrences of ``inference.modelling.layers.scan`` as plain loops over tokens, which tests compare with."""

from __future__ import annotations

import torch

from inference.modelling.layers.scan import selective_step, trapezoidal_step


def ssd_scan_sequential(
    x: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """The recurrence of ``ssd_scan``, token by token."""
    per_group = x.shape[1] // b.shape[1]
    out = torch.empty_like(x)
    for token in range(x.shape[0]):
        b_token = b[token].repeat_interleave(per_group, 0)
        c_token = c[token].repeat_interleave(per_group, 0)
        state.mul_(log_decay[token].exp()[:, None, None]).add_(x[token].unsqueeze(2) * b_token.unsqueeze(1))
        out[token] = (state * c_token.unsqueeze(1)).sum(-1)
    return out


def trapezoidal_scan_sequential(
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
    """The recurrence of ``trapezoidal_scan``, token by token."""
    out = torch.empty_like(x)
    for token in range(x.shape[0]):
        one = slice(token, token + 1)
        out[one] = trapezoidal_step(
            x[one], delta[one], share[one], log_decay[one], b[one], c[one],
            state.unsqueeze(0), x_before.unsqueeze(0), b_before.unsqueeze(0),
        )  # fmt: skip
    return out


def selective_scan_sequential(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    limit: float | None = None,
) -> torch.Tensor:
    """The recurrence of ``selective_scan``, token by token."""
    rows = [
        selective_step(x[t : t + 1], delta[t : t + 1], a, b[t : t + 1], c[t : t + 1], state.unsqueeze(0), limit)
        for t in range(x.shape[0])
    ]
    return torch.cat(rows)
