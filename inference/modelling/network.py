"""HybridForCausalLM: the network that a ``ModelSpec`` describes, whatever its layers are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.spec import LayerSpec, ModelSpec, NormSpec

MIXERS: dict[str, str] = {
    "attention": "attention:Attention",
    "mla": "mla:MultiHeadLatentAttention",
    "mamba1": "mamba1:Mamba1Mixer",
    "mamba2": "mamba2:Mamba2Mixer",
    "mamba3": "mamba3:Mamba3Mixer",
    "mlp": "mlp:MLP",
    "moe": "moe:MixtureOfExperts",
}
"""A spec's ``kind`` to "module:Class" in ``inference.modelling.layers``."""


def _build_mixer(part: object, hidden_size: int) -> nn.Module:
    module, _, name = MIXERS[part.kind].partition(":")  # type: ignore[attr-defined]
    cls = getattr(import_module(f"inference.modelling.layers.{module}"), name)
    return cast("nn.Module", cls(part, hidden_size))


def _build_norm(spec: NormSpec | None, width: int) -> Norm | None:
    return None if spec is None else Norm(spec, width)


class HybridLayer(nn.Module):
    """One layer of the residual stream: a token mixer, a channel mixer, or both."""

    def __init__(self, spec: LayerSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.token_norm = _build_norm(spec.token_norm, hidden_size)
        self.token_mixer = None if spec.token_mixer is None else _build_mixer(spec.token_mixer, hidden_size)
        self.token_post_norm = _build_norm(spec.token_post_norm, hidden_size)
        self.channel_norm = _build_norm(spec.channel_norm, hidden_size)
        self.channel_mixer = None if spec.channel_mixer is None else _build_mixer(spec.channel_mixer, hidden_size)
        self.channel_post_norm = _build_norm(spec.channel_post_norm, hidden_size)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) residual stream in and out; ``state`` advances in place."""
        if self.token_mixer is not None:
            mixed = hidden if self.token_norm is None else self.token_norm(hidden)
            mixed = self.token_mixer(mixed, batch, state)
            hidden = self._add(hidden, mixed, self.token_post_norm)
        if self.channel_mixer is not None:
            mixed = hidden if self.channel_norm is None else self.channel_norm(hidden)
            hidden = self._add(hidden, self.channel_mixer(mixed), self.channel_post_norm)
        return hidden

    def _add(self, hidden: torch.Tensor, mixed: torch.Tensor, post_norm: Norm | None) -> torch.Tensor:
        if post_norm is not None:
            mixed = post_norm(mixed)
        multiplier = self.spec.residual_multiplier
        return hidden + (mixed if multiplier == 1.0 else mixed * multiplier)


class HybridForCausalLM(nn.Module):
    """Embedding, layers, final norm, head.

    Built empty (on the meta device) and filled by ``inference.modelling.weights.load_network``.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = nn.Parameter(torch.empty(spec.vocab_size, spec.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(HybridLayer(layer, spec.hidden_size) for layer in spec.layers)
        self.final_norm = Norm(spec.final_norm, spec.hidden_size)
        self.lm_head = None if spec.tie_word_embeddings else Linear(spec.hidden_size, spec.vocab_size)

    def forward(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        """Run one step.

        Args:
            batch: The step's tokens.
            states: One per layer, advanced in place.

        Returns:
            (T, h), after the final norm.
        """
        hidden = functional.embedding(batch.input_ids, cast("torch.Tensor", self.embed_tokens.weight))
        if self.spec.embedding_multiplier != 1.0:
            hidden = hidden * self.spec.embedding_multiplier
        for layer, state in zip(self.layers, states, strict=True):
            hidden = layer(hidden, batch, state)
        return cast("torch.Tensor", self.final_norm(hidden))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, h) rows of ``forward``'s result to (n, V) float32 logits."""
        if self.lm_head is None:
            logits = functional.linear(hidden, cast("torch.Tensor", self.embed_tokens.weight))
        else:
            logits = self.lm_head(hidden)
        logits = logits.float()
        if self.spec.logits_multiplier != 1.0:
            logits = logits * self.spec.logits_multiplier
        if self.spec.logits_softcap is not None:
            logits = torch.tanh(logits / self.spec.logits_softcap) * self.spec.logits_softcap
        return logits
