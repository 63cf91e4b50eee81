"""The scans: chunked against the loop over tokens, cut anywhere, one token at a time; decays from none to total."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.layers import scan
from inference.modelling.layers.recurrent import head_decay_rates, step_sizes
from tests.inference.modelling import sequential_scans

EXAMPLES = settings(max_examples=40, deadline=None)
LENGTHS = st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 128, 150]))


def make_ssd(seed: int, length: int, groups: int, per_group: int, decay: float) -> dict[str, torch.Tensor]:
    """Inputs with decays spread over many orders of magnitude around ``decay`` (natural logarithms per token)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    heads, width, size = groups * per_group, 3, 5
    return {
        "x": draw(length, heads, width),
        "log_decay": -decay * (3.0 * draw(length, heads)).exp(),
        "b": draw(length, groups, size),
        "c": draw(length, groups, size),
        "state": draw(heads, width, size),
    }


def double(inputs: dict) -> dict:
    return {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    scale = max(1.0, wanted.abs().max().item())
    assert (found.double() - wanted.double()).abs().max().item() <= tolerance * scale


def whole(function, inputs: dict, length_names: tuple[str, ...], cuts: list[int]):
    """Run in pieces that end at ``cuts``; states in ``inputs`` advance in place."""
    length = inputs[length_names[0]].shape[0]
    bounds = sorted({0, length, *(cut for cut in cuts if cut < length)})
    parts = []
    for start, stop in pairwise(bounds):
        piece = {key: value[start:stop] if key in length_names else value for key, value in inputs.items()}
        parts.append(function(**piece))
    return torch.cat(parts)


SSD_ROWS = ("x", "log_decay", "b", "c")
TRAPEZOIDAL_ROWS = ("x", "delta", "share", "log_decay", "b", "c")
SELECTIVE_ROWS = ("x", "delta", "b", "c")


@EXAMPLES
@given(
    seed=st.integers(0, 1 << 20),
    length=LENGTHS,
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    decay=st.sampled_from([0.0, 1e-4, 0.05, 1.0, 30.0]),
    cuts=st.lists(st.integers(1, 149), max_size=3),
)
def test_ssd_scan_is_the_recurrence_however_it_is_cut(seed, length, groups, per_group, decay, cuts):
    inputs = make_ssd(seed, length, groups, per_group, decay)
    exact = double(inputs)
    wanted = sequential_scans.ssd_scan_sequential(**exact)
    found = whole(scan.ssd_scan, inputs, SSD_ROWS, cuts)
    assert_close(found, wanted)
    assert_close(inputs["state"], exact["state"])


def test_ssd_scan_keeps_small_differences_after_a_strong_decay():
    """One token that wipes the state must not blur the decays of the tokens after it (float32 sums would)."""
    inputs = make_ssd(0, 64, 1, 2, 0.01)
    inputs["log_decay"][3] = -1e6
    exact = double(inputs)
    wanted = sequential_scans.ssd_scan_sequential(**exact)
    assert_close(scan.ssd_scan(**inputs), wanted)
    assert_close(inputs["state"], exact["state"])


@EXAMPLES
@given(seed=st.integers(0, 1 << 20), count=st.integers(1, 6), groups=st.integers(1, 3))
def test_ssd_step_is_one_token_of_each_sequence(seed, count, groups):
    inputs = make_ssd(seed, count, groups, 2, 0.5)
    states = torch.randn(count, *inputs["state"].shape, generator=torch.Generator().manual_seed(seed))
    wanted_states = states.clone()
    rows = {key: inputs[key] for key in SSD_ROWS}
    found = scan.ssd_step(**rows, state=states)
    for index in range(count):
        one = {key: value[index : index + 1] for key, value in rows.items()}
        assert_close(found[index : index + 1], sequential_scans.ssd_scan_sequential(**one, state=wanted_states[index]))
    assert_close(states, wanted_states)


def make_trapezoidal(seed: int, length: int, decay: float) -> dict[str, torch.Tensor]:
    inputs = make_ssd(seed, length, 4, 1, decay)
    generator = torch.Generator().manual_seed(seed + 1)
    heads, width, size = inputs["state"].shape
    return {
        "x": inputs["x"],
        "delta": torch.rand(length, heads, generator=generator),
        "share": torch.rand(length, heads, generator=generator),
        "log_decay": inputs["log_decay"],
        "b": inputs["b"],
        "c": inputs["c"],
        "state": inputs["state"],
        "x_before": torch.randn(heads, width, generator=generator),
        "b_before": torch.randn(heads, size, generator=generator),
    }


@EXAMPLES
@given(
    seed=st.integers(0, 1 << 20),
    length=LENGTHS,
    decay=st.sampled_from([0.0, 1e-4, 0.05, 1.0, 30.0]),
    cuts=st.lists(st.integers(1, 149), max_size=3),
)
def test_trapezoidal_scan_is_the_recurrence_however_it_is_cut(seed, length, decay, cuts):
    inputs = make_trapezoidal(seed, length, decay)
    exact = double(inputs)
    wanted = sequential_scans.trapezoidal_scan_sequential(**exact)
    found = whole(scan.trapezoidal_scan, inputs, TRAPEZOIDAL_ROWS, cuts)
    assert_close(found, wanted)
    for name in ("state", "x_before", "b_before"):
        assert_close(inputs[name], exact[name])


@EXAMPLES
@given(
    seed=st.integers(0, 1 << 20),
    length=LENGTHS,
    limit=st.sampled_from([None, 0.5, 30.0]),
    rate=st.floats(-8.0, 3.0),
    cuts=st.lists(st.integers(1, 149), max_size=3),
)
def test_selective_scan_is_the_recurrence_however_it_is_cut(seed, length, limit, rate, cuts):
    generator = torch.Generator().manual_seed(seed)
    channels, size = 4, 3
    inputs = {
        "x": torch.randn(length, channels, generator=generator),
        "delta": torch.rand(length, channels, generator=generator),
        "a": rate * torch.rand(channels, size, generator=generator) * (1.0 if limit or rate < 0 else -1.0),
        "b": torch.randn(length, size, generator=generator),
        "c": torch.randn(length, size, generator=generator),
        "state": torch.randn(channels, size, generator=generator).clamp(-(limit or 9), limit or 9),
        "limit": limit,
    }
    # A state that grows without bound loses digits in any order of operations; with a limit it can't.
    exact = double(inputs)
    wanted = sequential_scans.selective_scan_sequential(**exact)
    found = whole(scan.selective_scan, inputs, SELECTIVE_ROWS, cuts)
    assert_close(found, wanted, 5e-4 if limit and rate > 0 else 2e-5)
    assert_close(inputs["state"], exact["state"], 5e-4 if limit and rate > 0 else 2e-5)


def test_selective_scan_works_in_pieces_when_the_state_is_large(monkeypatch):
    inputs = {
        "x": torch.randn(37, 4, generator=torch.Generator().manual_seed(0)),
        "delta": torch.rand(37, 4, generator=torch.Generator().manual_seed(1)),
        "a": -torch.rand(4, 3, generator=torch.Generator().manual_seed(2)),
        "b": torch.randn(37, 3, generator=torch.Generator().manual_seed(3)),
        "c": torch.randn(37, 3, generator=torch.Generator().manual_seed(4)),
    }
    first, second = torch.zeros(4, 3), torch.zeros(4, 3)
    wanted = scan.selective_scan(**inputs, state=first)
    monkeypatch.setattr(scan, "SELECTIVE_CHUNK_VALUES", 60)
    assert torch.equal(scan.selective_scan(**inputs, state=second), wanted)
    assert torch.equal(first, second)


def test_growing_state_stays_finite_with_enormous_steps():
    """exp(Δ A) of a growing state may exceed float32; the empty state must not become NaN by it."""
    state = torch.zeros(1, 2, 3)
    x, delta = torch.ones(1, 2), torch.full((1, 2), 500.0)
    b = torch.tensor([[0.0, 1e-3, 1.0]])
    out = scan.selective_step(x, delta, torch.ones(2, 3), b, torch.ones(1, 3), state, 30.0)
    assert state[0, 0].tolist() == [0.0, 0.5, 30.0]
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("clamp", "override", "wanted"),
    [
        (None, None, [-(2.0**-30), -1.0, -(2.0**30)]),
        ((1e-6, 1e6), None, [-1e-6, -1.0, -1e6]),
        ((1e-6, 1e6), "-(1..H)", [-1.0, -2.0, -3.0]),
    ],
)
def test_head_decay_rates(clamp, override, wanted):
    stored = torch.tensor([-30.0, 0.0, 30.0]) * torch.tensor(2.0).log()
    torch.testing.assert_close(head_decay_rates(stored, clamp, override), torch.tensor(wanted), rtol=1e-5, atol=0.0)


def test_step_sizes_add_the_bias_before_softplus_and_clamp_both_ways():
    dt = torch.tensor([[-20.0, 0.0, 20.0]])
    bias = torch.tensor([0.0, -3.0, 0.0])
    found = step_sizes(dt, bias, 0.001, 0.1)
    torch.testing.assert_close(found, torch.tensor([[0.001, torch.tensor(-3.0).exp().log1p().item(), 0.1]]))
