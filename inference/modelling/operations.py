"""Count the multiply-adds of one token's pass through a network, layer by layer. Standard library only.

A multiplication, with the addition that may follow it, counts as one. What is counted, for a token that sees L tokens,
its own included (a window, a chunk or an indexer lets it see fewer):

    projections   n · m for each matrix (n, m) that the token is multiplied by, the router's and shared experts' too;
                  latent attention in its absorbed form, as decoding computes it
    experts       the same of the routed experts, times those that a token is routed to
    convolution   channels · taps
    attention     heads · L · (width of a key + width of a value), and an indexer's queries with all keys
    recurrence    for each value of a state: one to decay it, one for each product that is added, one to read it; the
                  delta rules read twice

Norms, activations, gates, rotations and the mixes of several residual streams are left out: their operations grow with
the width, not with its square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.indexer import BlockIndexerSpec, PooledIndexerSpec
from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, MoESpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
)
from inference.modelling.specs.parallel import MixerSpec
from inference.modelling.specs.parts import Shape
from inference.modelling.specs.rwkv import TimeMixSpec

NOT_MULTIPLIED = (
    "A_log",
    "lambdas",
    "query_scale",
    "relative_scale",
    "table.weight",
    "token_experts",
    "embed_tokens.weight",
    "embed_positions.weight",
)
"""Ends of the names of parameters with two axes that no row is multiplied by: rows are looked up, or scaled by them."""


@dataclass(frozen=True, slots=True)
class LayerMacs:
    """Multiply-adds (MACs) of one token in a layer, by what they are for."""

    projections: int = 0
    experts: int = 0
    convolution: int = 0
    attention: int = 0
    recurrence: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, part.name) for part in fields(self))


def layer_macs(spec: ModelSpec, context: int) -> list[LayerMacs]:
    """Return the multiply-adds of each layer for one token.

    Args:
        context: Tokens that the token sees, its own included, where nothing limits that.
    """
    return [_layer(spec, layer, context) for layer in spec.layers]


def macs_outside_layers(spec: ModelSpec) -> int:
    """Return the multiply-adds of one token outside of the layers: the head's, and what begins and ends streams."""
    shapes = {name: shape for name, shape in spec.parameter_shapes().items() if not name.startswith("layers.")}
    total = sum(math.prod(shape) for name, shape in shapes.items() if _is_matrix(name, shape))
    return total + (spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0)


def _layer(spec: ModelSpec, layer: LayerSpec, context: int) -> LayerMacs:
    projections = experts = convolution = 0
    for name, shape in layer.parameter_shapes(spec.hidden_size).items():
        if not _is_matrix(name, shape):
            continue
        size = math.prod(shape) * _repeats(layer, name)
        if ".experts." in name:
            top_k, choices = _routing(layer, name)
            experts += size * top_k // choices
        elif "conv" in name:
            convolution += size
        else:
            projections += size
    mixers = layer.token_mixers
    return LayerMacs(
        projections,
        experts,
        convolution,
        sum(_attention(mixer, context, spec) for mixer in mixers),
        sum(_recurrence(mixer) for mixer in mixers),
    )


def _is_matrix(name: str, shape: Shape) -> bool:
    """Whether a token's row is multiplied by the parameter, rather than scaled or shifted by it.

    Shapes alone don't say it: biases of heads, blocks and experts have two axes too.
    """
    return len(shape) > 1 and not name.endswith(("bias", *NOT_MULTIPLIED)) and "norm." not in name


def _repeats(layer: LayerSpec, name: str) -> int:
    """Return how often a token is multiplied by a matrix, which is once for each head for a few of them."""
    mixer = layer.token_mixer
    if isinstance(mixer, RelativeAttentionSpec) and name.endswith("relative_profiles"):
        return mixer.num_heads
    return mixer.num_heads if isinstance(mixer, Mamba3Spec) and "mimo_x" in name else 1


def _routing(layer: LayerSpec, name: str) -> tuple[int, int]:
    """Return how many experts a token is routed to, and among how many it is, for a stack of experts."""
    mixer = layer.token_mixer
    if name.startswith("token_mixer.") and isinstance(mixer, AttentionSpec) and mixer.head_experts is not None:
        return mixer.head_experts.top_k, mixer.head_experts.num_experts
    routed = layer.shortcut if name.startswith("shortcut.") else layer.channel_mixer
    assert isinstance(routed, MoESpec), name
    return routed.top_k, routed.num_choices


def _attention(mixer: MixerSpec, context: int, spec: ModelSpec) -> int:
    """Return the products of a token's queries with the keys that it sees, and of the weights with their values."""
    if isinstance(mixer, AttentionSpec):
        limits = [limit for limit in (mixer.sliding_window, mixer.chunk_size) if limit is not None]
        indexing, index = 0, mixer.block_indexer
        if isinstance(index, BlockIndexerSpec):
            indexing = mixer.num_kv_heads * index.head_dim * context
            limits.append(index.top_k * index.block_size)
        elif isinstance(index, PooledIndexerSpec):
            indexing = index.num_heads * index.head_dim * (context // index.block_size)
            limits.append((index.top_k + 1) * index.block_size)
        values = 2 * mixer.value_dim if mixer.difference is not None else mixer.value_dim
        return indexing + mixer.num_heads * min([context, *limits]) * (mixer.head_dim + values)
    if isinstance(mixer, MLASpec):
        own = mixer.indexer
        indexing = 0 if own is None else own.macs(context)
        chooser = mixer if mixer.choice_source is None else spec.layers[mixer.choice_source].token_mixer
        choice = chooser.indexer if isinstance(chooser, MLASpec) else None
        limits = [context if choice is None else choice.seen_tokens, mixer.sliding_window or context]
        seen = min([context, *limits])
        return indexing + mixer.num_heads * seen * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    return _compressed(mixer, context) if isinstance(mixer, CompressedAttentionSpec) else 0


def _compressed(mixer: CompressedAttentionSpec, context: int) -> int:
    """Return the same for a window with pooled entries."""
    indexing = 0
    entries = 0 if mixer.compressor is None else context // mixer.compressor.window
    if mixer.indexer is not None:
        indexing = mixer.indexer.macs(context)
        entries = min(entries, mixer.indexer.top_k)
    return indexing + mixer.num_heads * (min(context, mixer.sliding_window) + entries) * 2 * mixer.head_dim


def _recurrence(mixer: MixerSpec) -> int:
    """Return the multiply-adds on a recurrent state: to decay it, to write to it, to read it."""
    if isinstance(mixer, Mamba1Spec):
        return 3 * mixer.intermediate_size * mixer.state_size
    if isinstance(mixer, Mamba2Spec):
        return 3 * mixer.num_heads * mixer.head_dim * mixer.state_size
    if isinstance(mixer, Mamba3Spec):
        # The token before is written once more (trapezoidal rule).
        return 4 * mixer.num_heads * mixer.state_head_dim * mixer.state_size
    if isinstance(mixer, GatedDeltaSpec):
        # What the key held is read before it is overwritten.
        return 4 * mixer.num_value_heads * mixer.key_head_dim * mixer.value_head_dim
    if isinstance(mixer, KimiDeltaSpec):
        return 4 * mixer.num_heads * mixer.head_dim**2
    if isinstance(mixer, LightningSpec):
        return 3 * mixer.num_heads * mixer.head_dim**2
    if isinstance(mixer, MLSTMSpec):
        return 3 * mixer.num_heads * mixer.key_head_dim * mixer.value_head_dim
    if isinstance(mixer, RGLRUSpec):
        return 2 * mixer.width
    if isinstance(mixer, TimeMixSpec):
        return 4 * mixer.width  # of the values' sum and of the weights' sum: decay, and adding or reading
    return 0
