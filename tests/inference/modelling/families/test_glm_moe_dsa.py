"""GLM-5: which layers choose the keys, by each of the ways in which config.json says it."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.families.glm_moe_dsa import build_spec
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import view_of
from tests.inference.modelling.families.latent import layers

CONFIG = {"model_type": "glm_moe_dsa", "num_attention_heads": 2, "num_experts_per_tok": 2}


def build(indexed: tuple[int, ...], **config: Any) -> ModelSpec:
    return build_spec(view_of(layers(5, indexed=indexed), CONFIG | config))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"indexer_types": ["full", "shared", "shared", "full", "shared"]}, [None, 0, 0, None, 3]),
        ({"index_topk_pattern": "FSFSS"}, [None, 0, None, 2, 2]),
        ({"index_topk_pattern": ["full", "full", "shared", "shared", "full"]}, [None, None, 1, 1, None]),
        ({"index_topk_freq": 2}, [None, None, 1, None, 3]),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, [None, 0, 0, None, 3]),
        ({}, [None] * 5),
    ],
)
def test_layers_that_share_a_choice(config: dict[str, Any], expected: list[int | None]) -> None:
    indexed = tuple(number for number, source in enumerate(expected) if source is None)
    spec = build(indexed, **config)
    assert [layer.token_mixer.choice_source for layer in spec.layers] == expected
    assert [layer.token_mixer.indexer is None for layer in spec.layers] == [source is not None for source in expected]
    assert spec.layers[0].token_mixer.indexer.rope.interleaved
    assert build((0, 1, 2, 3, 4), **config).layers == spec.layers, "indexers without a use are left out"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingTensor, match=r"layers\.2\.self_attn\.indexer"):
        build((0, 1), index_topk_freq=4, index_skip_topk_offset=3)
    with pytest.raises(CorruptCheckpoint, match="indexer_types"):
        build((0,), index_topk_pattern="FSXSS")


def test_a_run_begins_with_the_layer_whose_choice_is_read() -> None:
    spec = build((0, 3), indexer_types=["full", "shared", "shared", "full", "shared"])
    assert [spec.first_needed(number) for number in range(5)] == [0, 0, 0, 3, 3]
    assert spec.source_numbers() == (0, 0, 0, 3, 3)
