"""The gated delta rule in pieces against one row after the other."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.gated_delta import CHUNK, delta_scan, delta_step


def random_rows(count: int, heads: int = 3, key: int = 8, value: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(count)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    query, keys = normal(count, heads, key), torch.nn.functional.normalize(normal(count, heads, key), dim=-1)
    beta = 2 * torch.rand(count, heads, generator=generator)
    log_decay = -8 * torch.rand(count, heads, generator=generator) ** 4  # most near 0, some that forget all at once
    return query, keys, normal(count, heads, value), beta, log_decay


def one_by_one(rows: tuple[torch.Tensor, ...], state: torch.Tensor) -> torch.Tensor:
    entries = state.unsqueeze(0)
    return torch.cat([delta_step(*(part[at : at + 1] for part in rows), entries) for at in range(len(rows[0]))])


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_pieces_give_what_rows_give(count):
    rows = random_rows(count)
    state = torch.randn(3, 8, 5)
    expected_state = state.clone()
    expected = one_by_one(rows, expected_state)
    found = delta_scan(*rows, state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


def test_a_key_is_overwritten():
    """β = 1 without decay: what a key held before is gone, and it now holds the new value."""
    key = torch.nn.functional.normalize(torch.randn(1, 3, 8), dim=-1)
    state, value = torch.randn(1, 3, 8, 5), torch.randn(1, 3, 5)
    out = delta_step(key, key, value, torch.ones(1, 3), torch.zeros(1, 3), state)
    torch.testing.assert_close(out, value)


def test_a_row_has_the_same_bits_alone_and_among_others():
    query, key, value, beta, log_decay = random_rows(4)
    together = torch.randn(4, 3, 8, 5)
    alone = together[2:3].clone()
    found = delta_step(query, key, value, beta, log_decay, together)[2:3]
    expected = delta_step(query[2:3], key[2:3], value[2:3], beta[2:3], log_decay[2:3], alone)
    assert torch.equal(found, expected)
    assert torch.equal(together[2:3], alone)
