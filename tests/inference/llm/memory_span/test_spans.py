"""Half-lives whose value is known, norms of the states, and limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.memory_span import spans as spans_module
from inference.llm.memory_span.observers import norm_positions
from inference.llm.memory_span.spans import half_life, measure_spans, measuring_bytes, observe_spans
from inference.llm.options import LLMOptions
from inference.modelling.layers.relative_attention import MAX_SCORES
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, Mamba3Spec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.parallel import BranchSpec, ParallelSpec
from inference.modelling.specs.parts import RopeSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from inference.values.memory_span import MAX_TOKENS
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.llm.memory_span.networks import NORM, runner_of, token_ids

LN2 = math.log(2)


@torch.inference_mode()
def constant(layer, **parameters: float) -> None:
    """Fill parameters by their dotted names; what follows from the input becomes constant."""
    for name, value in parameters.items():
        layer.get_parameter(name.replace("__", ".")).fill_(value)


@torch.inference_mode()
def only_span(runner, count: int = 40):
    (span,) = observe_spans(runner, token_ids(count))
    return span


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


@pytest.mark.parametrize(
    ("mixer", "parameters", "rate", "num_heads"),
    [
        # Δ = softplus(-2), A = -1
        (
            Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM),
            {"in_proj__weight": 0.0, "dt_bias": -2.0, "A_log": 0.0},
            softplus(-2.0),
            4,
        ),
        (
            Mamba1Spec(16, 8, 3, 4),
            {"dt_proj__weight": 0.0, "dt_proj__bias": -2.0, "A_log": math.log(3.0)},
            3 * softplus(-2.0),
            1,
        ),
        (
            GatedDeltaSpec(2, 4, 8, 6, 4, NORM),
            {"ba_proj__weight": 0.0, "dt_bias": -3.0, "A_log": 0.0},
            softplus(-3.0),
            4,
        ),
        (
            KimiDeltaSpec(2, 8, 4, NORM, 6, None),
            {"decay_proj__weight": 0.0, "dt_bias": -3.0, "A_log": LN2},
            2 * softplus(-3.0),
            2,
        ),
        # log f = log σ(c tanh(1 / c))
        (
            MLSTMSpec(2, 8, 8, 15.0, 1e-6, 1e-6),
            {"gates__weight": 0.0, "gates__bias": 1.0},
            softplus(-15.0 * math.tanh(1 / 15.0)),
            2,
        ),
        (
            RGLRUSpec(32, 2, 4),
            {"decay_gate__weight": 0.0, "decay_gate__bias": 0.0, "decay": 0.0},
            8 * 0.5 * softplus(0.0),
            2,
        ),
        (TimeMixSpec(32, 16), {"decay": -2.0}, math.exp(-2.0), 1),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_half_lives_are_those_of_the_parameters(mixer, parameters, rate, num_heads) -> None:
    runner = runner_of(mixer)
    constant(runner.network.layers[0].token_mixer, **parameters)
    span = only_span(runner)
    assert (span.layer, span.kind, len(span.heads)) == (0, mixer.kind, num_heads)
    for head in span.heads:
        assert head.half_life == pytest.approx(LN2 / rate, rel=1e-4)
        assert head.half_life_low == pytest.approx(head.half_life_high, rel=1e-4)
        assert head.distance is None


def test_lightning_has_a_rate_for_each_head() -> None:
    runner = runner_of(LightningSpec(2, 16, 1.0, NORM))
    span = only_span(runner)
    rates = -runner.network.layers[0].token_mixer.log_decays(torch.device("cpu"))
    assert [head.half_life for head in span.heads] == pytest.approx([LN2 / float(rate) for rate in rates])


def test_channels_of_rwkv_reach_back_as_their_decays_say() -> None:
    """Weights of earlier tokens halve after the half-life: the median channel's, between the others."""
    runner = runner_of(TimeMixSpec(32, 5))
    layer = runner.network.layers[0].token_mixer
    half_lives = [1.0, 4.0, 20.0, 100.0, 500.0]
    with torch.inference_mode():
        layer.decay.copy_(torch.tensor([LN2 / value for value in half_lives]).log())
    (head,) = only_span(runner).heads
    assert head.half_life == pytest.approx(20.0, rel=1e-4)
    assert head.half_life_low == pytest.approx(1.0) and head.half_life_high == pytest.approx(500.0)


def test_the_norm_is_that_of_the_state_after_the_text() -> None:
    runner = runner_of(GatedDeltaSpec(2, 4, 8, 6, 4, NORM))
    span = only_span(runner)
    state = runner.states[0]["delta_state"][1]
    assert [head.state_norm for head in span.heads] == pytest.approx(state.flatten(1).norm(dim=1).tolist())
    assert all(norm > 0 for norm in state.flatten(1).norm(dim=1).tolist())


@pytest.mark.parametrize(
    ("mixer", "state"),
    [
        (Mamba1Spec(16, 8, 3, 4), "ssm_state"), (Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM), "ssm_state"),
        (Mamba3Spec(12, 3, 4, 6, 1, None, True, 0, NORM, NORM), "ssm_state"),
        (GatedDeltaSpec(2, 4, 8, 6, 4, NORM), "delta_state"), (KimiDeltaSpec(2, 8, 4, NORM, 6, None), "delta_state"),
        (LightningSpec(2, 16, 1.0, NORM), "linear_state"),
        (MLSTMSpec(2, 8, 8, 15.0, 1e-6, 1e-6), "memory_state"), (RGLRUSpec(32, 2, 4), "lru_state"),
        (TimeMixSpec(32, 16), "wkv_state"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)  # fmt: skip
@torch.inference_mode()
def test_norms_over_the_text_are_those_of_its_beginnings(mixer, state) -> None:
    """The norm at each position is that of the state after reading so much and no more."""
    ids = token_ids(40)
    runner = runner_of(mixer)
    (span,) = observe_spans(runner, ids)
    for position in (1, 2, 20, 40):
        number = norm_positions(40).index(position)
        runner.hidden(ids[:position])  # by the layer's own method, in one piece
        wanted = runner.states[0][state][1].reshape(len(span.heads), -1).norm(dim=1)
        assert [head.state_norms[number] for head in span.heads] == pytest.approx(wanted.tolist(), rel=1e-4)
    assert all(head.state_norm == head.state_norms[-1] for head in span.heads)


def test_norms_are_taken_at_even_distances() -> None:
    assert norm_positions(3) == [1, 2, 3]
    assert norm_positions(4096) == list(range(128, 4097, 128))


def test_recurrences_beside_attention_are_told_apart() -> None:
    branches = (BranchSpec(AttentionSpec(4, 2, 8, 0.35)), BranchSpec(Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM)))
    runner = runner_of(ParallelSpec(branches))
    with torch.inference_mode():
        spans = observe_spans(runner, token_ids(40))
    assert [span.kind for span in spans] == ["attention", "mamba2"]
    assert [len(span.heads[0].state_norms or ()) for span in spans] == [0, 32]


def test_layers_that_read_the_keys_of_others_are_measured() -> None:
    """Such a layer has no state of its own (Gemma 3n)."""
    first = AttentionSpec(4, 2, 8, 0.4, sliding_window=9)
    runner = runner_of(first, AttentionSpec(4, 2, 8, 0.4, kv_source=0), AttentionSpec(4, 2, 8, 0.4, chunk_size=6))
    spans = observe_spans(runner, token_ids(30))
    assert [(span.layer, span.window) for span in spans] == [(0, 9), (1, None), (2, 6)]
    assert all(head.distance is not None and head.distance > 0 for span in spans for head in span.heads)
    assert max(head.distance for head in spans[2].heads) < 5


def test_layers_come_in_order_and_convolutions_say_their_taps() -> None:
    attention = AttentionSpec(4, 2, 8, 0.35, RopeSpec(10000.0, 8), sliding_window=9)
    runner = runner_of(ShortConvSpec(32, 3), attention, Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM))
    with torch.inference_mode():
        spans = observe_spans(runner, token_ids(40))
    assert [(span.layer, span.kind, span.window) for span in spans] == [
        (0, "short_conv", 3), (1, "attention", 9), (2, "mamba2", None),
    ]  # fmt: skip
    assert all(0 < head.distance < 9 for head in spans[1].heads)


@pytest.mark.parametrize(
    "mixer",
    [
        AttentionSpec(4, 2, 8, 0.35, RopeSpec(10000.0, 8), sliding_window=5),
        MLASpec(4, 16, None, 8, 4, 8, 0.25, RopeSpec(10000.0, 4), kv_a_norm=NORM, sliding_window=5),
    ],
    ids=["attention", "mla"],
)
def test_layers_that_read_an_earlier_one_s_cache_reach_as_far_as_they_see(mixer) -> None:
    spans = observe_spans(runner_of(mixer, replace(mixer, kv_source=0)), token_ids(40))
    assert [(span.layer, span.window) for span in spans] == [(0, 5), (1, 5)]
    assert all(0 < head.distance < 5 for span in spans for head in span.heads)


def test_channel_mixing_of_rwkv_reads_two_tokens() -> None:
    runner = runner_of(TimeMixSpec(32, 16), ChannelMixSpec(32, 48))
    with torch.inference_mode():
        spans = observe_spans(runner, token_ids(40))
    assert [(span.layer, span.kind, span.window, len(span.heads)) for span in spans] == [
        (0, "time_mix", None, 1), (1, "channel_mix", 2, 0),
    ]  # fmt: skip


def test_the_layers_are_left_as_they_were() -> None:
    runner = runner_of(Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM), AttentionSpec(4, 2, 8, 0.35))
    with torch.inference_mode():
        wanted = runner.hidden(token_ids(20))
        observe_spans(runner, token_ids(20))
        assert torch.equal(runner.hidden(token_ids(20)), wanted)
    assert not any("gates" in vars(module) or "attend_chunk" in vars(module) for module in runner.network.modules())


def test_what_does_not_decay_has_no_half_life() -> None:
    assert half_life(0.0) == math.inf
    assert half_life(LN2) == 1.0
    assert half_life(math.inf) == 0.0


def test_limits_are_named() -> None:
    runner = runner_of(AttentionSpec(4, 2, 8, 0.35))
    with torch.inference_mode(), pytest.raises(InvalidRequest, match="at layer 0 of 1"):
        observe_spans(runner, token_ids(20), max_seconds=-1.0)
    inspection = inspect_checkpoint(PREBUILT_DIRECTORY)
    for count in (1, MAX_TOKENS + 1):
        with pytest.raises(InvalidRequest, match=f"has {count} tokens; 2 to 4096"):
            measure_spans(inspection.spec, inspection.weight_paths, [1] * count, options=LLMOptions())


@pytest.mark.parametrize("mixer", [AttentionSpec(4, 2, 8, 0.35), Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM)])
def test_layers_that_compute_nan_are_named(mixer) -> None:
    """As those of a run that has diverged: no figure of theirs can be drawn."""
    runner = runner_of(ShortConvSpec(32, 3), mixer)
    with torch.inference_mode(), pytest.raises(InvalidRequest, match=r"^layer 1 computes NaN, .* check the weights\.$"):
        for parameter in runner.network.layers[1].parameters():
            parameter.fill_(math.nan)
        observe_spans(runner, token_ids(20))


@pytest.mark.parametrize("length", [64, 1024])
def test_the_bytes_of_a_measurement_cover_what_it_holds(length) -> None:
    """Weights, states, and the scores of one block of rows are there at least."""
    spec = inspect_checkpoint(PREBUILT_DIRECTORY).spec
    found = measuring_bytes(spec, length, torch.float32)
    scores = 5 * 4 * min(128, length) * length  # heads, bytes, rows, columns
    least = 4 * spec.num_parameters() + spec.state_bytes_per_sequence("float32") + scores
    assert least < found < 4 * least + (8 << 20)
    assert measuring_bytes(spec, length, torch.bfloat16) < found


def test_scores_by_distance_are_counted_with_their_block_of_rows() -> None:
    mixer = RelativeAttentionSpec(4, 2, 8, 0.4, relative_width=3, extent=6)
    layers = tuple(LayerSpec(one, NORM) for one in (mixer, AttentionSpec(4, 2, 8, 0.4)))
    relative, usual = (ModelSpec("huggingface", "x", 32, 61, 9999, (one,), NORM) for one in layers)
    for length in (1024, 8192):
        more = measuring_bytes(relative, length, torch.float32) - measuring_bytes(usual, length, torch.float32)
        scores = 4 * min(4 * length * length, MAX_SCORES)
        assert 2 * scores < more < 5 * scores


def test_decays_of_a_layer_are_dropped_when_they_were_summed_up(monkeypatch) -> None:
    """All layers' decays together would be as large as their rows."""
    kept = []

    def keep(number, layer, recordings):
        kept.append((recordings, len(recordings)))
        return []

    monkeypatch.setattr(spans_module, "_spans_of_layer", keep)
    runner = runner_of(Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM), LightningSpec(2, 16, 1.0, NORM))
    with torch.inference_mode():
        observe_spans(runner, token_ids(40))
    assert [(len(recordings), before) for recordings, before in kept] == [(0, 1), (0, 1)]
