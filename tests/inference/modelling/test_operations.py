"""Multiply-adds of a token: against those that torch counts in a real decode step, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from inference.modelling.network import HybridForCausalLM
from inference.modelling.operations import LayerMacs, layer_macs, macs_outside_layers
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.attention_parts import DifferenceSpec
from inference.modelling.specs.indexer import BlockIndexerSpec, IndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.parallel import BranchSpec, ParallelSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from tests.inference.modelling.harness import SequenceRunner

WIDTH, CONTEXT = 32, 12
NORM = NormSpec(eps=1e-6)
ATTENTION = AttentionSpec(4, 2, 8, 8**-0.5, v_head_dim=6)
MLA = MLASpec(4, 16, 12, 8, 4, 6, 1.0, RopeSpec(10000.0, 4))
MOE = MoESpec(6, 2, 24, shared_intermediate_size=10)
MAMBA2 = Mamba2Spec(64, 8, 8, 16, 2, 4, 64, NORM)
MAMBA3 = Mamba3Spec(32, 4, 8, 6, 1, 4, False, 2, NORM, NORM)
DELTA = GatedDeltaSpec(2, 4, 8, 6, 4, NORM)


def spec_of(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("huggingface", "test", WIDTH, 50, 128, layers, NORM)


def layer(mixer: object = None, channel: object = None) -> LayerSpec:
    return LayerSpec(
        token_mixer=mixer,  # type: ignore[arg-type]
        token_norm=None if mixer is None else NORM,
        channel_mixer=channel,  # type: ignore[arg-type]
        channel_norm=None if channel is None else NORM,
    )


def attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """Of the fused attention on a CPU, which torch's counter doesn't know."""
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])


def counted(spec: ModelSpec) -> int:
    """Multiply-adds of products of matrices in the layers, as torch counts them in the step of token ``CONTEXT``."""
    network = HybridForCausalLM(spec)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.copy_(torch.rand(parameter.shape, generator=generator) * 0.1)
    runner = SequenceRunner(network)
    runner.step([("a", list(range(CONTEXT - 1)))])
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={flash: attention_flops}) as counter:
        runner.step([("a", [1])])
    return sum(counter.get_flop_counts()["HybridForCausalLM"].values()) // 2


PRODUCTS: dict[str, tuple[LayerSpec, Callable[[LayerMacs], int]]] = {
    "attention": (layer(ATTENTION, MLPSpec(40)), lambda found: found.total),
    "plain mlp": (layer(None, MLPSpec(40, "gelu", gated=False)), lambda found: found.total),
    # The rotated part of the cached rows is taken along as values, and dropped.
    "mla": (layer(MLA), lambda found: found.total + 4 * CONTEXT * 4),
    # The chosen experts' outputs are added by one more product.
    "moe": (layer(None, MOE), lambda found: found.total + MOE.top_k * WIDTH),
    # Where reading a state is a product of matrices it is counted, fading and writing it are not. Mamba-1 multiplies
    # its step sizes in eight rows, whatever the batch.
    "mamba1": (
        layer(Mamba1Spec(64, 8, 4, 4)),
        lambda found: found.projections + found.recurrence // 3 + 7 * 64 * 4,
    ),
    "mamba2": (layer(MAMBA2), lambda found: found.projections + found.recurrence // 3),
    "mamba3": (layer(MAMBA3), lambda found: found.projections + found.recurrence // 4),
    "gated delta": (layer(DELTA), lambda found: found.projections),
    "kimi delta": (layer(KimiDeltaSpec(4, 8, 4, NORM, 6, None)), lambda found: found.projections),
    "lightning": (layer(LightningSpec(4, 8, 1.0, NORM)), lambda found: found.projections + found.recurrence // 3),
    "mlstm": (layer(MLSTMSpec(2, 8, 6, 15.0, 1e-6, 1e-6)), lambda found: found.projections),
    "rg-lru": (layer(RGLRUSpec(24, 3, 4)), lambda found: found.projections),
    "short conv": (layer(ShortConvSpec(WIDTH, 3)), lambda found: found.projections),
    "rwkv": (layer(TimeMixSpec(WIDTH, 24)), lambda found: found.projections),
    "rwkv channels": (layer(ChannelMixSpec(WIDTH, 40)), lambda found: found.total),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_matrices_are_those_that_torch_counts(name: str) -> None:
    one, expected = PRODUCTS[name]
    spec = spec_of(one)
    (found,) = layer_macs(spec, CONTEXT)
    assert expected(found) > 0
    assert counted(spec) == expected(found)


@pytest.mark.parametrize(
    ("mixer", "context", "attention"),
    [
        (ATTENTION, 100, 4 * 100 * (8 + 6)),
        (replace(ATTENTION, sliding_window=16), 100, 4 * 16 * (8 + 6)),
        (replace(ATTENTION, sliding_window=16), 5, 4 * 5 * (8 + 6)),
        (replace(ATTENTION, chunk_size=32), 100, 4 * 32 * (8 + 6)),
        (AttentionSpec(4, 2, 8, 1.0, difference=DifferenceSpec(0.8, NORM)), 10, 4 * 10 * (8 + 16)),
        (replace(ATTENTION, block_indexer=BlockIndexerSpec(5, 4, 3, 1, NORM)), 100, 2 * 5 * 100 + 4 * 12 * (8 + 6)),
        (MLA, 100, 4 * 100 * (16 + 4 + 16)),
        (replace(MLA, indexer=IndexerSpec(3, 5, 20, RopeSpec(1e4, 4), NORM)), 100, 3 * 5 * 100 + 4 * 20 * 36),
        (ParallelSpec((BranchSpec(ATTENTION), BranchSpec(MAMBA2))), 10, 4 * 10 * 14),
    ],
)
def test_attention_by_hand(mixer: object, context: int, attention: int) -> None:
    (found,) = layer_macs(spec_of(layer(mixer)), context)
    assert found.attention == attention


def test_a_choice_of_another_layer_limits_what_is_seen() -> None:
    first = replace(MLA, indexer=IndexerSpec(3, 5, 20, RopeSpec(1e4, 4), NORM))
    _, second = layer_macs(spec_of(layer(first), layer(replace(MLA, choice_source=0))), 100)
    assert second.attention == 4 * 20 * 36


@pytest.mark.parametrize(
    ("mixer", "convolution", "recurrence"),
    [
        (Mamba1Spec(64, 8, 4, 4), 64 * 4, 3 * 64 * 8),
        (MAMBA2, (64 + 2 * 2 * 16) * 4, 3 * 8 * 8 * 16),
        (MAMBA3, (32 + 2 * 6) * 4, 4 * 4 * 16 * 6),
        (DELTA, (2 * 16 + 24) * 4, 4 * 4 * 8 * 6),
        (KimiDeltaSpec(4, 8, 4, NORM, 6, None), 3 * 32 * 4, 4 * 4 * 64),
        (LightningSpec(4, 8, 1.0, NORM), 0, 3 * 4 * 64),
        (MLSTMSpec(2, 8, 6, 15.0, 1e-6, 1e-6), 0, 3 * 2 * 48),
        (RGLRUSpec(24, 3, 4), 24 * 4, 2 * 24),
        (ShortConvSpec(WIDTH, 3), WIDTH * 3, 0),
        (TimeMixSpec(WIDTH, 24), 0, 4 * 24),
    ],
)
def test_recurrent_layers_by_hand(mixer: object, convolution: int, recurrence: int) -> None:
    """They cost the same at every length."""
    for context in (1, 1000):
        (found,) = layer_macs(spec_of(layer(mixer)), context)
        assert (found.convolution, found.recurrence, found.attention) == (convolution, recurrence, 0)


def test_experts_count_as_often_as_a_token_is_routed_to_them() -> None:
    (found,) = layer_macs(spec_of(layer(None, MOE)), 1)
    assert found.experts == 2 * 3 * WIDTH * 24
    assert found.projections == WIDTH * 6 + 3 * WIDTH * 10


def test_the_head_is_outside_of_the_layers_tied_or_not() -> None:
    spec = spec_of(layer(ATTENTION))
    assert macs_outside_layers(spec) == macs_outside_layers(replace(spec, tie_word_embeddings=True)) == 50 * WIDTH
    assert macs_outside_layers(replace(spec, position_rows=9)) == 50 * WIDTH
