"""RWKV-4: rows mixed with those before them, and the mean of the values so far."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.rwkv import ChannelMix, TimeMix, TokenShift
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from tests.gpu.compare import assert_close
from tests.gpu.recurrent_case import DTYPES, check_form, copied, fill, make_batch, make_state, num_rows

HIDDEN, WIDTH = 40, 72
BATCHES = ["decodes", "chunks", "mixed"]


def time_mix() -> TimeMix:
    layer = TimeMix(TimeMixSpec(HIDDEN, WIDTH), HIDDEN)
    fill(layer)
    return layer


@pytest.mark.parametrize("rows_dtype", DTYPES)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("kind", ["time", "channel"])
def test_shift(kind, name, rows_dtype, device):
    from inference.modelling.backends.triton.rwkv import shift_tokens

    layer = time_mix() if kind == "time" else ChannelMix(ChannelMixSpec(HIDDEN, 24), HIDDEN)
    fill(layer)
    batch = make_batch(name)
    state = make_state([part for part in layer.spec.state() if part.name == "shift_state"], batch)
    rows = torch.randn(num_rows(batch), HIDDEN).to(getattr(torch, rows_dtype))
    check_form(layer, shift_tokens, TokenShift.shift, [rows], state, batch, device)


@pytest.mark.parametrize("rows_dtype", DTYPES)
@pytest.mark.parametrize("name", BATCHES)
def test_mean(name, rows_dtype, device):
    from inference.modelling.backends.triton.rwkv import mix_wkv

    layer, batch = time_mix(), make_batch(name)
    state = make_state([part for part in layer.spec.state() if part.name != "shift_state"], batch)
    rows = [torch.randn(num_rows(batch), WIDTH).to(getattr(torch, rows_dtype)) * scale for scale in (3, 1, 1)]
    check_form(layer, mix_wkv, TimeMix.mix, rows, state, batch, device)


def test_keys_of_any_size(device):
    """The sums of e^key overflow in float32 from 89 on; over the greatest one they don't."""
    from inference.modelling.backends.triton.rwkv import mix_wkv

    layer, batch = time_mix(), make_batch("chunks")
    state = make_state([part for part in layer.spec.state() if part.name != "shift_state"], batch)
    key, value, receptance = (torch.randn(num_rows(batch), WIDTH) for _ in range(3))
    key *= 200
    wanted = TimeMix.mix(layer, key, value, receptance, batch, copied(state, torch.device("cpu")))
    moved = [part.to(device) for part in (key, value, receptance)]
    found = mix_wkv(layer.to(device), *moved, batch, copied(state, device))
    assert_close(found, wanted, torch.float32)
