"""RWKV-4: two layers for each block, the norm behind the embedding, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, MissingTensor
from inference.modelling.families.rwkv import build_spec
from inference.modelling.families.state_space import UNBOUNDED_POSITIONS
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

WIDTH, INNER = 12, 40


def layer_norm(name: str) -> dict:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def shapes() -> dict:
    found = {"rwkv.embeddings.weight": (VOCAB, HIDDEN), "head.weight": (VOCAB, HIDDEN), **layer_norm("rwkv.ln_out")}
    found |= layer_norm("rwkv.blocks.0.pre_ln")
    for number in range(2):
        block = f"rwkv.blocks.{number}."
        found |= layer_norm(f"{block}ln1") | layer_norm(f"{block}ln2")
        for base, names in (("attention", ("key", "value", "receptance")), ("feed_forward", ("key", "receptance"))):
            found |= {f"{block}{base}.time_mix_{name}": (1, 1, HIDDEN) for name in names}
        found |= {f"{block}attention.{name}.weight": (WIDTH, HIDDEN) for name in ("key", "value", "receptance")}
        found |= {f"{block}attention.{name}": (WIDTH,) for name in ("time_decay", "time_first")}
        found |= {
            f"{block}attention.output.weight": (HIDDEN, WIDTH), f"{block}feed_forward.key.weight": (INNER, HIDDEN),
            f"{block}feed_forward.receptance.weight": (HIDDEN, HIDDEN),
            f"{block}feed_forward.value.weight": (HIDDEN, INNER),
        }  # fmt: skip
    return found


def test_a_block_is_two_layers() -> None:
    spec = build_spec(view_of(shapes(), {"num_hidden_layers": 2}))
    assert [layer.token_mixer for layer in spec.layers] == [
        TimeMixSpec(HIDDEN, WIDTH), ChannelMixSpec(HIDDEN, INNER),
    ] * 2  # fmt: skip
    assert spec.parameters["layers.3.token_norm.bias"].pieces[0].name == "rwkv.blocks.1.ln2.bias"
    assert spec.state_bytes_per_sequence() == 2 * 4 * (2 * HIDDEN + 3 * WIDTH)
    assert spec.state_bytes_per_token() == 0


def test_the_norm_behind_the_embedding_is_the_first_blocks() -> None:
    spec = build_spec(view_of(shapes(), {"layer_norm_epsilon": 1e-3, "context_length": 1024}))
    assert spec.embedding_norm is not None and spec.embedding_norm.eps == 1e-3
    assert spec.parameters["embedding_norm.weight"].pieces[0].name == "rwkv.blocks.0.pre_ln.weight"
    assert spec.final_norm.eps == 1e-5
    assert spec.max_position_embeddings == UNBOUNDED_POSITIONS
    found = shapes()
    del found["rwkv.blocks.0.pre_ln.bias"]
    with pytest.raises(MissingTensor, match="pre_ln"):
        build_spec(view_of(found))


@pytest.mark.parametrize("key", ["attention_hidden_size", "intermediate_size", "hidden_size", "num_hidden_layers"])
def test_contradictions_are_refused_by_key(key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        build_spec(view_of(shapes(), {key: 1}))
