"""Measure how far back each layer of a checkpoint reaches over a text; no Django, no engine.

A recurrent head that multiplies its state by e^g at each token has forgotten half of what it held after ln 2 / -g
tokens: its half-life. Attention has no state that decays; there the mean distance to the tokens attended to says how
far back it reads. A short convolution reads as many tokens as it has taps, RWKV's channel mixing two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from inference.engine.device import on_device
from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import InvalidRequest
from inference.llm.loading import choose_dtype
from inference.llm.memory_span.observers import ROW_BLOCK, Observers, Recording
from inference.llm.options import LLMOptions
from inference.llm.quality import BLOCK_SIZE, WindowRunner
from inference.modelling.backends.backend import Backend
from inference.modelling.layers.relative_attention import MAX_SCORES
from inference.modelling.layers.rwkv import ChannelMix
from inference.modelling.layers.short_conv import ShortConv
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.weights.loader import load_network
from inference.values.memory_span import MAX_TOKENS

ROWS_OF_HIDDEN = 36
"""Rows of a layer that are there at once, in widths of the residual stream."""
COPIES_OF_SCORES = 4
"""Scores, weights, what is hidden, and products with the distance."""
LEAST_DECAY = 1e-9
"""A decay per token below this counts as none: half of the state would last for 700 million tokens."""

Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class HeadSpan:
    """How far back one head reaches, in tokens.

    Attributes:
        half_life: Median over tokens and channels; infinite where nothing decays; None: no recurrent head.
        half_life_low, half_life_high: Tenth and ninetieth percentile.
        state_norm: Euclidean norm of the head's state after the text; None: no recurrent head.
        state_norms: The same at each of ``norm_positions``; the last one is ``state_norm``.
        distance: Mean distance to the tokens attended to; None: no attention.
        sink_share: Mean attention weight on the head's sink; None: no sink.
    """

    half_life: float | None = None
    half_life_low: float | None = None
    half_life_high: float | None = None
    state_norm: float | None = None
    state_norms: tuple[float, ...] | None = None
    distance: float | None = None
    sink_share: float | None = None


@dataclass(frozen=True, slots=True)
class MixerSpan:
    """One mixer of one layer.

    Attributes:
        layer: Number of the layer, from 0.
        kind: Name of the mixer's kind in the spec.
        heads: One entry for each head; the channels of Mamba-1 and RWKV-4 count as one head. Empty for a convolution.
        window: Tokens that a windowed attention or a convolution can reach, the newest included; None: no limit.
    """

    layer: int
    kind: str
    heads: tuple[HeadSpan, ...]
    window: int | None = None


def measure_spans(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    token_ids: Sequence[int],
    *,
    options: LLMOptions,
    max_seconds: float = math.inf,
    progress: Progress | None = None,
) -> list[MixerSpan]:
    """Read a text once, from an empty state, and return what each mixer did, layer by layer.

    Args:
        token_ids: 2 to ``MAX_TOKENS`` tokens.
        options: Device and dtype; nothing is quantised.
        max_seconds: Most seconds after the load.
        progress: Gets the share done and what is being done.

    Raises:
        InvalidRequest: Too few or too many tokens, it takes longer than ``max_seconds``, or a layer yields NaN.
        CheckpointError: The files can't be loaded.
    """
    if not 2 <= len(token_ids) <= MAX_TOKENS:
        raise InvalidRequest(f"the text has {len(token_ids)} tokens; 2 to {MAX_TOKENS} can be inspected.")
    dtype, device = choose_dtype(spec, options), torch.device(options.device)
    with on_device(device), torch.inference_mode():
        network = load_network(spec, weight_files, dtype=TORCH_DTYPES[dtype], device=device)
        Backend(device, TORCH_DTYPES[dtype]).bind(network)  # the layers' own methods, which are observed
        runner = WindowRunner(network, len(token_ids), dtype, options.device)
        return observe_spans(runner, token_ids, max_seconds=max_seconds, progress=progress)


def measuring_bytes(spec: ModelSpec, num_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that a measurement takes: weights, states, a layer's rows, and its attention weights.

    Args:
        spec: Specification of the network.
        num_tokens: Tokens of the text.
        dtype: dtype that the network is computed in.
    """
    name = next(name for name, each in TORCH_DTYPES.items() if each == dtype)
    states = 2 * spec.state_bytes_per_sequence(name) + spec.state_bytes_per_token(name) * (num_tokens + 2 * BLOCK_SIZE)
    rows = ROWS_OF_HIDDEN * spec.hidden_size * num_tokens * dtype.itemsize
    mixers = [mixer for layer in spec.layers for mixer in layer.token_mixers]
    with_heads = (mixer for mixer in mixers if isinstance(mixer, AttentionSpec | MLASpec | CompressedAttentionSpec))
    heads = max((mixer.num_heads for mixer in with_heads), default=0)
    attention = COPIES_OF_SCORES * 4 * heads * min(ROW_BLOCK, num_tokens) * num_tokens
    if any(isinstance(mixer, RelativeAttentionSpec) for mixer in mixers):
        attention = max(attention, COPIES_OF_SCORES * 4 * min(MAX_SCORES, heads * num_tokens * num_tokens))
    return spec.num_parameters() * dtype.itemsize + states + rows + attention


def observe_spans(
    runner: WindowRunner, token_ids: Sequence[int], *, max_seconds: float = math.inf, progress: Progress | None = None
) -> list[MixerSpan]:
    """``measure_spans`` of a network that is loaded, and whose layers have no faster forms bound."""
    report = progress or (lambda share, detail: None)
    network, deadline = runner.network, time.monotonic() + max_seconds
    batch = runner.batch(token_ids)
    stream = network.embed(batch)
    found = []
    with Observers(network) as observers:
        states = network.states_by_layer(runner.states)
        for number, (layer, state) in enumerate(zip(network.layers, states, strict=True)):
            report(number / len(network.layers), f"layer {number}")
            if time.monotonic() > deadline:
                raise InvalidRequest(
                    f"the text took longer than {max_seconds:g} s (at layer {number} of {len(network.layers)}); "
                    "read fewer tokens, or allow more time."
                )
            observers.layer = number
            layer(stream, batch, state)
            found += _numbers(_spans_of_layer(number, layer, observers.recordings[number]))
            observers.recordings[number].clear()  # decays of all channels take as much memory as the rows
    report(1.0, "done")
    return found


def _numbers(spans: list[MixerSpan]) -> list[MixerSpan]:
    """Return spans, unless a figure isn't a number."""
    for span in spans:
        figures = [(head.half_life, head.state_norm, head.distance) for head in span.heads]
        if any(value is not None and math.isnan(value) for values in figures for value in values):
            raise InvalidRequest(
                f"layer {span.layer} computes NaN, so there is nothing to show; use --dtype float32, and check the "
                "weights.",
                param="dtype",
            )
    return spans


def _spans_of_layer(number: int, layer: nn.Module, recordings: Sequence[Recording]) -> list[MixerSpan]:
    found = []
    for recording in recordings:
        spec: Any = recording.module.spec
        if recording.log_decays is not None and recording.state_norms is not None:
            found.append(MixerSpan(number, spec.kind, _recurrent_heads(recording.log_decays, recording.state_norms)))
        else:
            found.append(MixerSpan(number, spec.kind, _attention_heads(recording), _window(spec)))
    for module in layer.modules():
        if isinstance(module, ShortConv):
            found.append(MixerSpan(number, module.spec.kind, (), module.spec.conv_kernel))
        elif isinstance(module, ChannelMix):
            found.append(MixerSpan(number, module.spec.kind, (), 2))
    return found


def _window(spec: Any) -> int | None:
    """Tokens that an attention can reach; None: no limit, as for pooled entries, which lie before a window."""
    if isinstance(spec, CompressedAttentionSpec) and spec.compressor is not None:
        return None
    limit: int | None = getattr(spec, "sliding_window", None) or getattr(spec, "chunk_size", None)
    return limit


def _recurrent_heads(log_decays: torch.Tensor, state_norms: torch.Tensor) -> tuple[HeadSpan, ...]:
    """(T, H, C) decays and (N, H) norms of the states to one span for each head."""
    rates = np.quantile(log_decays.transpose(0, 1).flatten(1).double().neg().numpy(), (0.1, 0.5, 0.9), axis=1)
    return tuple(
        HeadSpan(half_life(middle), half_life(fast), half_life(slow), norms[-1], tuple(norms))
        for slow, middle, fast, norms in zip(*rates.tolist(), state_norms.T.tolist(), strict=True)
    )


def half_life(rate: float) -> float:
    """Tokens after which half is left of what decays by e^-rate at each token."""
    return math.inf if rate < LEAST_DECAY else math.log(2) / rate


def _attention_heads(recording: Recording) -> tuple[HeadSpan, ...]:
    assert recording.distances is not None
    distances = recording.distances.tolist()
    shares = [None] * len(distances) if recording.sink_shares is None else recording.sink_shares.tolist()
    return tuple(
        HeadSpan(distance=distance, sink_share=share) for distance, share in zip(distances, shares, strict=True)
    )
