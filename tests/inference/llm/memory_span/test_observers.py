"""Attended distances against the whole matrix of weights, for each kind of attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from inference.llm.memory_span import observers
from inference.llm.memory_span.observers import Observers, attended_distances
from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.inkling2 import ClippedAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from tests.inference.llm.memory_span.networks import NORM, runner_of, token_ids


def reference(query, key, scale, window, softcap, sinks):
    """Row by row, head by head, in float64."""
    count, heads = query.shape[:2]
    distances, shares = torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
    for head in range(heads):
        keys = key[:, head * key.shape[1] // heads].double()
        for row in range(count):
            first = 0 if window is None else max(0, row - window + 1)
            scores = keys[first : row + 1] @ query[row, head].double() * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            weights = scores.softmax(0)
            distances[head] += sum(float(w) * (row - first - at) for at, w in enumerate(weights)) / count
            if sinks is not None:
                with_sink = torch.cat((scores, sinks[head : head + 1].double())).softmax(0)
                shares[head] += with_sink[-1] / count
    return distances, shares


@pytest.mark.parametrize("window", [None, 1, 7, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_distances_are_those_of_the_weights(window, softcap, has_sinks, monkeypatch) -> None:
    monkeypatch.setattr(observers, "ROW_BLOCK", 8)  # several blocks, the last one short
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(21, 4, 8, generator=generator), torch.randn(21, 2, 8, generator=generator)
    sinks = torch.randn(4, generator=generator) if has_sinks else None
    found = attended_distances(query, key, scale=0.5, window=window, softcap=softcap, sinks=sinks)
    for values, wanted in zip(found, reference(query, key, 0.5, window, softcap, sinks), strict=True):
        torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-6)


def test_equal_scores_reach_half_of_the_text_back() -> None:
    found, _ = attended_distances(
        torch.zeros(101, 1, 4), torch.zeros(101, 1, 4), scale=1.0, window=None, softcap=None, sinks=None
    )
    assert float(found) == pytest.approx(25.0)  # the mean over rows of row / 2


@pytest.mark.parametrize(
    "mixer",
    [
        AttentionSpec(4, 2, 8, 0.35, RopeSpec(10000.0, 8), softcap=20.0),
        MLASpec(4, 16, 12, 8, 8, 8, 0.25, RopeSpec(10000.0, 8, interleaved=True), False, NORM, NORM),
    ],
    ids=["attention", "mla"],
)
def test_layers_are_watched(mixer) -> None:
    """The weights that the layer's own attention has, put on values that are the positions, give its distances."""
    runner = runner_of(mixer)
    batch = runner.batch(token_ids(30))
    with torch.inference_mode(), Observers(runner.network) as watched:
        runner.network.layers[0](runner.network.embed(batch), batch, runner.states[0])
    ((recording,),) = watched.recordings
    assert recording.module is runner.network.layers[0].token_mixer
    assert recording.log_decays is None and recording.sink_shares is None
    assert recording.distances.shape == (4,)
    assert bool((recording.distances > 0).all() and (recording.distances < 29).all())


RELATIVE: dict[str, Any] = {"conv_kernel": 2, "relative_width": 3, "extent": 6, "score_growth": (0.9, 3)}
CLIPPED: dict[str, Any] = {**RELATIVE, "v_norm": NormSpec(weightless=True), "output_gate": True}


@pytest.mark.parametrize(
    "mixer",
    [
        RelativeAttentionSpec(4, 2, 8, 0.4, qk_norm=NORM, sliding_window=9, **RELATIVE),
        ClippedAttentionSpec(4, 2, 8, 0.4, **CLIPPED),
    ],
    ids=["relative", "clipped"],
)
def test_relative_attention_reaches_as_far_as_its_weights_do(mixer, monkeypatch) -> None:
    """Values that are the position and one give the weights' sums beside the mean position."""
    monkeypatch.setattr(observers, "ROW_BLOCK", 8)
    runner, count = runner_of(mixer), 30
    layer, generator = runner.network.layers[0].token_mixer, torch.Generator().manual_seed(3)
    query, relative = torch.randn(count, 4, 8, generator=generator), torch.randn(count, 4, 3, generator=generator)
    key, value = torch.randn(count, 2, 8, generator=generator), torch.zeros(count, 2, 8)
    value[..., 0], value[..., 1] = torch.arange(count)[:, None], 1.0
    sinks = torch.randn(count, 4, generator=generator) if isinstance(mixer, ClippedAttentionSpec) else None
    batch = runner.batch(token_ids(count))
    with torch.inference_mode(), Observers(runner.network) as watched:
        out = layer.attend(query, key, value, relative, batch, runner.states[0], sinks).view(count, 4, 8)
    ((recording,),) = watched.recordings
    distances = torch.arange(count)[:, None] - out[..., 0] / out[..., 1]
    torch.testing.assert_close(recording.distances.float(), distances.mean(0), rtol=1e-4, atol=1e-4)
    if sinks is None:
        assert recording.sink_shares is None
    else:
        torch.testing.assert_close(recording.sink_shares.float(), 1 - out[..., 1].mean(0), rtol=1e-4, atol=1e-5)


def test_slopes_draw_heads_to_their_neighbours() -> None:
    """With equal scores of q and k the weights are a geometric series: e^-slope for each position back."""
    zeros = torch.zeros(400, 2, 4)
    found, _ = attended_distances(zeros, zeros, scale=1.0, window=None, softcap=None, sinks=None, slopes=(0.5, 1.0))
    for slope, distance in zip((0.5, 1.0), found, strict=True):
        expected = math.exp(-slope) / (1 - math.exp(-slope))
        assert float(distance) == pytest.approx(expected, rel=0.02)  # the first rows reach less far
