"""xLSTM's memory in pieces against one row after the other, and that against its definition."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.mlstm import CHUNK, HeadNorm, mlstm_scan, mlstm_step


def random_rows(count: int, heads: int = 3, key: int = 6, value: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    log_keep = torch.nn.functional.logsigmoid(4 * normal(count, heads))
    return [normal(count, heads, key), normal(count, heads, key), normal(count, heads, value),
            4 * normal(count, heads), log_keep]  # fmt: skip


def random_states(heads: int = 3, key: int = 6, value: int = 5) -> list[torch.Tensor]:
    return [torch.randn(heads, key, value), torch.randn(heads, key), torch.randn(heads)]


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 9])
def test_pieces_give_what_rows_give(count):
    rows, states = random_rows(count), random_states()
    expected_states = [part.clone().unsqueeze(0) for part in states]
    steps = [mlstm_step(*(part[at : at + 1] for part in rows), expected_states, 1e-6) for at in range(count)]
    torch.testing.assert_close(mlstm_scan(*rows, states, 1e-6), torch.cat(steps), rtol=1e-3, atol=1e-4)
    for found, expected in zip(states, expected_states, strict=True):
        torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-4)


def test_a_row_is_the_definition_without_a_running_maximum():
    """C = f C + e^i kᵀ v and n = f n + e^i k, from nothing; o = q C / max(|q · n|, 1)."""
    query, key, value, write, log_keep = rows = [part.double() for part in random_rows(6)]
    states = [torch.zeros_like(part).unsqueeze(0).double() for part in random_states()]
    memory, total = states[0][0].clone(), states[1][0].clone()
    for t in range(6):
        found = mlstm_step(*(part[t : t + 1] for part in rows), states, 0.0)[0]
        keeps, writes = log_keep[t].exp()[:, None], write[t].exp()[:, None]
        memory = keeps[..., None] * memory + (writes * key[t])[..., None] * value[t][:, None]
        total = keeps * total + writes * key[t]
        divisor = (query[t] * total).sum(1).abs().clamp(min=1.0)
        expected = torch.einsum("hp,hpv->hv", query[t], memory) / divisor[:, None]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_exponents_beyond_float32_stay_finite():
    rows, states = random_rows(2 * CHUNK), random_states()
    rows[3] *= 1e4
    rows[4] *= 1e4
    assert mlstm_scan(*rows, states, 1e-6).isfinite().all()
    assert all(part.isfinite().all() for part in states)


def test_heads_are_normed_one_by_one():
    norm = HeadNorm(2, 4, 1e-5)
    norm.weight.copy_(torch.arange(8.0))
    values = torch.randn(3, 2, 4)
    expected = (values - values.mean(-1, keepdim=True)) / (values.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(norm(values), expected.flatten(1) * norm.weight)
