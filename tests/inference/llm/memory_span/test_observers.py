"""Attended distances against the whole matrix of weights, for each kind of attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from inference.llm.memory_span import observers
from inference.llm.memory_span.observers import Observers, attended_distances
from inference.modelling.specs.compressed import CompressedAttentionSpec, CompressorSpec
from inference.modelling.specs.indexer import BlockIndexerSpec
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
    distances = torch.arange(21)[:, None] - torch.arange(21)
    mask = torch.zeros(21, 21).masked_fill(distances >= (window or 21), -torch.inf)
    bias = None if window is None else lambda part: mask[part]
    found = attended_distances(query, key, scale=0.5, softcap=softcap, sinks=sinks, bias=bias)
    for values, wanted in zip(found, reference(query, key, 0.5, window, softcap, sinks), strict=True):
        torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-6)


def test_equal_scores_reach_half_of_the_text_back() -> None:
    found, _ = attended_distances(torch.zeros(101, 1, 4), torch.zeros(101, 1, 4), scale=1.0, softcap=None, sinks=None)
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


@pytest.mark.parametrize("window", [None, 3])
def test_latents_are_read_where_the_layer_has_them(window) -> None:
    """Those that another layer wrote lie in the cache alone."""
    runner = runner_of(MLASpec(4, 16, None, 8, 4, 8, 0.25, RopeSpec(10000.0, 4), kv_a_norm=NORM, sliding_window=window))
    layer, generator = runner.network.layers[0].token_mixer, torch.Generator().manual_seed(4)
    q_nope, q_rope = (torch.randn(20, 4, width, generator=generator) for width in (8, 4))
    latent, batch = torch.randn(20, 20, generator=generator), runner.batch(token_ids(20))
    runner.states[0]["latent"].index_copy_(0, batch.slot_mapping, latent)
    with torch.inference_mode(), Observers(runner.network) as watched:
        for rows in (latent, None):
            layer.attend_chunk(batch.prefills[0], q_nope, q_rope, rows, batch, runner.states[0])
    own, cached = watched.recordings[0]
    torch.testing.assert_close(own.distances, cached.distances)
    assert window is None or bool((own.distances < window).all())


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
    runner, zeros = runner_of(AttentionSpec(2, 2, 4, 1.0, slopes=(0.5, 1.0)), length=400), torch.zeros(400, 2, 4)
    layer, batch = runner.network.layers[0].token_mixer, runner.batch(token_ids(400))
    with torch.inference_mode(), Observers(runner.network) as watched:
        layer.attend_chunk(batch.prefills[0], zeros, zeros, zeros, batch, runner.states[0])
    found = watched.recordings[0][0].distances
    for slope, distance in zip((0.5, 1.0), found, strict=True):
        expected = math.exp(-slope) / (1 - math.exp(-slope))
        assert float(distance) == pytest.approx(expected, rel=0.02)  # the first rows reach less far


ATTENTIONS = {
    "chunks": {"chunk_size": 7},
    "window": {"sliding_window": 5},
    "sinks": {"has_sinks": True},
    "another-layers-keys": {},
    "blocks": {"rope": RopeSpec(10000.0, 8), "block_indexer": BlockIndexerSpec(6, 4, 2, 1, NORM)},
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_distances_are_those_of_what_a_layer_sees(name, monkeypatch) -> None:
    """Values that are the position and one give the weights' sums beside the mean position."""
    monkeypatch.setattr(observers, "ROW_BLOCK", 8)
    runner, count = runner_of(AttentionSpec(4, 2, 8, 0.4, **ATTENTIONS[name])), 30
    layer, generator = runner.network.layers[0].token_mixer, torch.Generator().manual_seed(3)
    query, key = torch.randn(count, 4, 8, generator=generator), torch.randn(count, 2, 8, generator=generator)
    value, index = torch.zeros(count, 2, 8), None
    value[..., 0], value[..., 1] = torch.arange(count)[:, None], 1.0
    batch, state = runner.batch(token_ids(count)), runner.states[0]
    rows = [query, key, value]
    if name == "blocks":
        index = torch.randn(count, 2, 6, generator=generator)
        state["index_k"][batch.slot_mapping] = torch.randn(count, 6, generator=generator)
    if name == "another-layers-keys":
        state["k"][batch.slot_mapping], state["v"][batch.slot_mapping] = key, value
        rows = [query, None, None]
    with torch.inference_mode(), Observers(runner.network) as watched:
        out = layer.attend_chunk(batch.prefills[0], *rows, batch, state, index)
    ((recording,),) = watched.recordings
    distances = torch.arange(count)[:, None] - out[..., 0] / out[..., 1]
    torch.testing.assert_close(recording.distances.float(), distances.mean(0), rtol=1e-4, atol=1e-4)
    if name == "sinks":
        torch.testing.assert_close(recording.sink_shares.float(), 1 - out[..., 1].mean(0), rtol=1e-4, atol=1e-5)
    else:
        assert recording.sink_shares is None


def test_latent_attention_sees_what_was_chosen_and_its_sinks(monkeypatch) -> None:
    monkeypatch.setattr(observers, "ROW_BLOCK", 8)
    mixer = MLASpec(4, 16, 12, 8, 8, 8, 0.25, RopeSpec(10000.0, 8), False, NORM, NORM, has_sinks=True)
    runner, count = runner_of(mixer), 30
    layer, generator = runner.network.layers[0].token_mixer, torch.Generator().manual_seed(4)
    q_nope, q_rope = (torch.randn(count, 4, 8, generator=generator) for _ in range(2))
    latent = torch.randn(count, 24, generator=generator)
    chosen = (torch.rand(count, count, generator=generator) < 0.3) | torch.eye(count, dtype=torch.bool)
    is_seen = chosen & (torch.arange(count)[:, None] >= torch.arange(count))
    bias = torch.zeros(count, count).masked_fill(~is_seen, -torch.inf)
    batch = runner.batch(token_ids(count))
    with torch.inference_mode(), Observers(runner.network) as watched:
        layer.attend_chunk(batch.prefills[0], q_nope, q_rope, latent, batch, runner.states[0], bias)
        key, _ = layer.expand(latent)
    ((recording,),) = watched.recordings
    scores = torch.einsum("nhp,mhp->hnm", torch.cat((q_nope, q_rope), -1), key) * 0.25 + bias
    positions = torch.arange(count)
    distances = (scores.softmax(-1) * (positions[:, None] - positions)).sum(-1).mean(1)
    torch.testing.assert_close(recording.distances.float(), distances, rtol=1e-4, atol=1e-4)
    sinks = layer.sinks[:, None, None].expand(4, count, 1)
    shares = torch.cat((scores, sinks), -1).softmax(-1)[..., -1].mean(1)
    torch.testing.assert_close(recording.sink_shares.float(), shares, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_pooled_entries_lie_in_the_middle_of_their_windows(window, monkeypatch) -> None:
    monkeypatch.setattr(observers, "ROW_BLOCK", 8)
    compressor = None if window is None else CompressorSpec(window, 8, False, RopeSpec(100.0, 4), NORM)
    mixer = CompressedAttentionSpec(4, 8, 12, 0.4, RopeSpec(100.0, 4), NORM, 6, 2, 5, compressor=compressor)
    runner, count = runner_of(mixer), 30
    layer, batch = runner.network.layers[0].token_mixer, runner.batch(token_ids(count))
    generator = torch.Generator().manual_seed(5)
    hidden, query = torch.randn(count, 32, generator=generator), torch.randn(count, 4, 8, generator=generator)
    state, (chunk,) = runner.states[0], batch.prefills
    keys = torch.randn(count, 8, generator=generator)
    with torch.inference_mode(), Observers(runner.network) as watched:
        state["kv"][batch.slot_mapping] = keys
        entries, middles = torch.zeros(0, 8), []
        if layer.compressor is not None:
            layer.compressor.update(hidden, batch, state)
            entries = layer.compressor.chunk_entries(chunk, batch, state)
            middles = [number * 4 + 1.5 for number in range(7)]
        layer.attend_chunk(chunk, query, batch, state, None)
    ((recording,),) = watched.recordings
    distances, shares = torch.zeros(4), torch.zeros(4)
    for row in range(count):
        tokens = list(range(max(0, row - 5), row + 1))
        whole = 0 if window is None else (row + 1) // window
        seen = torch.cat((keys[tokens], entries[:whole]))
        places = torch.tensor([*map(float, tokens), *middles[:whole]])
        for head in range(4):
            scores = seen @ query[row, head] * 0.4
            distances[head] += (scores.softmax(0) * (row - places)).sum() / count
            shares[head] += torch.cat((scores, layer.sinks[head : head + 1])).softmax(0)[-1] / count
    torch.testing.assert_close(recording.distances.float(), distances, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(recording.sink_shares.float(), shares, rtol=1e-4, atol=1e-5)
