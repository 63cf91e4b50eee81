"""RWKV-4's mixers against their sums written out, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.rwkv import NOTHING, ChannelMix, TimeMix, wkv_step
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from tests.inference.modelling.layers.recurrent_steps import HIDDEN, PIECES, fill, hidden_rows, run_in_pieces

WIDTH = 10


def shifted(hidden: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    before = torch.cat((torch.zeros(1, hidden.shape[1]), hidden[:-1]))
    return share * hidden + (1 - share) * before


def weighted_means(key: torch.Tensor, value: torch.Tensor, rate: torch.Tensor, bonus: torch.Tensor) -> torch.Tensor:
    """Softmax over all tokens so far, each row for itself, in float64."""
    rows = []
    for t in range(len(key)):
        ages = torch.arange(t - 1, -1, -1, dtype=torch.float64).unsqueeze(1)
        exponents = torch.cat((key[:t] - ages * rate, (key[t] + bonus).unsqueeze(0))).softmax(0)
        rows.append((exponents * value[: t + 1]).sum(0))
    return torch.stack(rows).float()


@pytest.mark.parametrize("pieces", PIECES)
def test_time_mixing_is_a_softmax_over_decayed_keys(pieces):
    layer, hidden = fill(TimeMix(TimeMixSpec(HIDDEN, WIDTH), HIDDEN)), hidden_rows()
    key = layer.key_proj(shifted(hidden, layer.key_mix)).double()
    value = layer.value_proj(shifted(hidden, layer.value_mix)).double()
    gate = layer.receptance_proj(shifted(hidden, layer.receptance_mix)).sigmoid()
    means = weighted_means(key, value, layer.decay.double().exp(), layer.bonus.double())
    wanted = layer.out_proj(gate * means)
    torch.testing.assert_close(run_in_pieces(layer, hidden, pieces), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pieces", PIECES)
def test_channel_mixing_reads_the_row_before(pieces):
    layer, hidden = fill(ChannelMix(ChannelMixSpec(HIDDEN, WIDTH), HIDDEN)), hidden_rows()
    up = layer.up_proj(shifted(hidden, layer.key_mix)).relu() ** 2
    wanted = layer.receptance_proj(shifted(hidden, layer.receptance_mix)).sigmoid() * layer.down_proj(up)
    torch.testing.assert_close(run_in_pieces(layer, hidden, pieces), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_keys_beyond_the_range_of_e_to_them(size):
    """Only differences of keys count."""
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator)
    rate, bonus = torch.tensor([0.01, 0.3, 1.0, 3.0]), torch.randn(4, generator=generator)
    states = [torch.zeros(4), torch.zeros(4), torch.full((4,), NOTHING)]
    found = torch.stack([wkv_step(k + size, v, -rate, bonus, *states) for k, v in zip(key, value, strict=True)])
    wanted = weighted_means(key.double(), value.double(), rate.double(), bonus.double())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
