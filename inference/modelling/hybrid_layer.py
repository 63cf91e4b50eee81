"""HybridLayer: one layer of a network, whatever its mixers are.

``inference.modelling.layer_forms`` has the forms whose stream is more than a sum.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.layer_inputs import LayerInput
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.norm_gate import NormGate
from inference.modelling.layers.shared_block import SharedBlock, SharedWeights
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.layers import ChannelMixerSpec
from inference.modelling.specs.parallel import MixerSpec, ParallelSpec
from inference.modelling.specs.parts import NormSpec

MIXERS: dict[str, str] = {
    "attention": "attention:Attention",
    "mla": "mla:MultiHeadLatentAttention",
    "mamba1": "mamba1:Mamba1Mixer",
    "mamba2": "mamba2:Mamba2Mixer",
    "mamba3": "mamba3:Mamba3Mixer",
    "gated_delta": "gated_delta:GatedDelta",
    "kimi_delta": "kimi_delta:KimiDelta",
    "lightning": "lightning:LightningAttention",
    "rg_lru": "rg_lru:RGLRU",
    "mlstm": "mlstm:MLSTM",
    "short_conv": "short_conv:ShortConv",
    "time_mix": "rwkv:TimeMix",
    "channel_mix": "rwkv:ChannelMix",
    "parallel": "parallel:Parallel",
    "convolved_attention": "convolved_attention:ConvolvedAttention",
    "relative_attention": "relative_attention:RelativeAttention",
    "clipped_attention": "clipped_attention:ClippedAttention",
    "compressed_attention": "compressed_attention:CompressedAttention",
    "mlp": "mlp:MLP",
    "memory_moe": "memory_moe:MemoryMixtureOfExperts",
    "moe": "moe:MixtureOfExperts",
    "shared_moe": "shared_moe:SharedMixtureOfExperts",
    "token_moe": "token_moe:TokenMixtureOfExperts",
}
"""A spec's ``kind`` to "module:Class" in ``inference.modelling.layers``."""


def _build_mixer(part: MixerSpec | ChannelMixerSpec, hidden_size: int) -> nn.Module:
    module, _, name = MIXERS[part.kind].partition(":")
    cls = getattr(import_module(f"inference.modelling.layers.{module}"), name)
    if isinstance(part, ParallelSpec):
        return cast("nn.Module", cls(part, hidden_size, _build_mixer))
    return cast("nn.Module", cls(part, hidden_size))


def build_norm(spec: NormSpec | None, width: int) -> Norm | None:
    """An empty norm over so many values; None: there is none."""
    return None if spec is None else Norm(spec, width)


class HybridLayer(Layer):
    """One layer of the residual stream: a token mixer, a channel mixer, or both.

    Args:
        spec: Which.
        hidden_size: h.
        number: Of the layer.
        blocks: The shared blocks by number; the layer adds the one that it is the first to use.
    """

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__()
        self.spec = spec
        self.number = number
        self.prologue = None
        if spec.prologue is not None:
            if spec.prologue.block not in blocks:
                blocks[spec.prologue.block] = SharedWeights(spec.prologue, hidden_size)
            self.prologue = SharedBlock(spec.prologue, hidden_size, blocks[spec.prologue.block])
        self.token_norm = build_norm(spec.token_norm, hidden_size)
        self.token_mixer = None if spec.token_mixer is None else _build_mixer(spec.token_mixer, hidden_size)
        self.token_post_norm = build_norm(spec.token_post_norm, hidden_size)
        self.channel_norm = build_norm(spec.channel_norm, hidden_size)
        self.channel_mixer = None if spec.channel_mixer is None else _build_mixer(spec.channel_mixer, hidden_size)
        self.channel_post_norm = build_norm(spec.channel_post_norm, hidden_size)
        self.shortcut = None if spec.shortcut is None else _build_mixer(spec.shortcut, hidden_size)
        self.layer_input = None if spec.layer_input is None else LayerInput(spec.layer_input, hidden_size)
        self.stream_scale = nn.Parameter(torch.empty(1), requires_grad=False) if spec.has_stream_scale else None
        self.token_gate = NormGate(spec.token_gate_rank, hidden_size) if spec.token_gate_rank else None
        self.channel_gate = NormGate(spec.channel_gate_rank, hidden_size) if spec.channel_gate_rank else None

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the residual stream through; ``state`` advances in place."""
        spec = self.spec
        if self.token_mixer is not None:
            mixed = self.token_mixer(self._enter(stream, batch, state), batch, state)
            _leave(stream, mixed, self.token_post_norm, spec.residual_multiplier)
        if self.channel_mixer is not None:
            entering = stream.enter(self.channel_norm, replaces=spec.replaces_stream)
            if self.channel_gate is not None:
                entering = self.channel_gate(entering)
            ends_here, stream.shortcut = stream.shortcut, None
            if self.shortcut is not None:
                stream.shortcut = self.shortcut(entering)
            mixed = self.channel_mixer(entering)
            if ends_here is not None:
                mixed = mixed + ends_here
            multiplier = spec.residual_multiplier if spec.channel_multiplier is None else spec.channel_multiplier
            _leave(stream, mixed, self.channel_post_norm, multiplier)
        if self.layer_input is not None:
            assert stream.layer_inputs is not None
            stream.leave(self.layer_input(stream.enter(None), stream.layer_inputs[:, self.number]), 1.0)
        if self.stream_scale is not None:
            stream.scale(self.stream_scale)

    def _enter(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """What the token mixer reads."""
        if self.prologue is None:
            entering = stream.enter(self.token_norm, replaces=self.spec.replaces_stream)
            return entering if self.token_gate is None else cast("torch.Tensor", self.token_gate(entering))
        assert self.token_norm is not None and stream.embedding is not None
        hidden = stream.enter(None)
        return self.token_norm.normalise(hidden + self.prologue(hidden, stream.embedding, batch, state))


def _leave(stream: ResidualStream, mixed: torch.Tensor, post_norm: Norm | None, multiplier: float) -> None:
    stream.leave(mixed if post_norm is None else post_norm(mixed), multiplier)
