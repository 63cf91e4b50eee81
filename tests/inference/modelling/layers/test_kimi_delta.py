"""The delta rule with a decay per channel: in pieces against one row after the other; its two forms of decay."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.gated_delta import delta_scan
from inference.modelling.layers.kimi_delta import CHUNK, KimiDelta, channel_delta_scan
from inference.modelling.specs.linear import KimiDeltaSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.test_gated_delta import one_by_one, random_rows


def channel_rows(count: int) -> list[torch.Tensor]:
    """As ``random_rows``, with a decay for each of 8 channels."""
    rows = list(random_rows(count, value=8))
    rows[-1] = -8 * torch.rand(count, 3, 8, generator=torch.Generator().manual_seed(count)) ** 4
    return rows


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
def test_pieces_give_what_rows_give(count):
    rows, state = channel_rows(count), torch.randn(3, 8, 8)
    expected_state = state.clone()
    expected = one_by_one(rows, expected_state)
    torch.testing.assert_close(channel_delta_scan(*rows, state), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


def test_decays_of_which_none_is_left_stay_finite():
    rows, state = channel_rows(2 * CHUNK), torch.randn(3, 8, 8)
    rows[-1].fill_(-1e5)
    out = channel_delta_scan(*rows, state)
    assert out.isfinite().all() and state.isfinite().all()


def test_equal_decays_of_all_channels_are_the_gated_delta_rule():
    rows, state = channel_rows(40), torch.randn(3, 8, 8)
    per_head = rows[-1][..., 0].clone()
    rows[-1][:] = per_head[..., None]
    expected_state = state.clone()
    expected = delta_scan(*rows[:-1], per_head, expected_state)
    torch.testing.assert_close(channel_delta_scan(*rows, state), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("least", [None, -5.0])
def test_decays_forget_and_are_bounded_where_the_spec_says_so(least):
    layer = KimiDelta(KimiDeltaSpec(2, 3, 4, NormSpec(), None, None, least), 8)
    with torch.no_grad():
        layer.A_log.copy_(torch.tensor([0.0, 1.0]))
        layer.dt_bias.zero_()
    projected = torch.tensor([[-100.0, 0.0, 100.0] * 2])
    found = layer.log_decays(projected)[0].tolist()
    rates = torch.e
    if least is None:
        expected = [0.0, -0.6931, -100.0, 0.0, -0.6931 * rates, -100.0 * rates]
    else:
        expected = [0.0, -2.5, -5.0, 0.0, -2.5, -5.0]
    assert found == pytest.approx(expected, abs=1e-3)
