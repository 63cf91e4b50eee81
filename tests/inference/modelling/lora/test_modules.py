"""Modules of a base by PEFT's names."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor
from inference.modelling.families.glm5_next import build_spec as build_glm
from inference.modelling.lora.modules import BaseModules
from tests.inference.modelling.families.headers import HIDDEN, view_of
from tests.inference.modelling.families.test_glm5_next import CONFIG as GLM
from tests.inference.modelling.families.test_glm5_next import shapes as glm_shapes
from tests.inference.modelling.lora.bases import llama, mixtral


def test_a_module_is_found_whatever_stands_before_the_layers() -> None:
    base = llama()
    (query,) = base.find("model.layers.0.self_attn.q_proj")
    assert (
        base.find("layers.0.self_attn.q_proj") == base.find("language_model.model.layers.0.self_attn.q_proj") == [query]
    )
    assert (query.owner, query.leaf, query.first_row) == ("layers.0.token_mixer.qkv_proj", "weight", 0)
    (key,) = base.find("model.layers.0.self_attn.k_proj")
    assert key.owner == query.owner and key.first_row == query.num_rows
    (up,) = base.find("model.layers.0.mlp.up_proj")
    assert (up.owner, up.first_row, up.num_rows) == ("layers.0.channel_mixer.gate_up_proj", 12, 12)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj", "model.layers.0.self_attn.w_proj", "q_proj", ""])
def test_other_modules_are_not_found(name: str) -> None:
    base = llama()
    assert base.find(name) == []
    assert "self_attn.q_proj" in base.similar("model.layers.0.self_attn.q_pro")


def test_experts_one_by_one_and_as_transformers_stacks_them() -> None:
    base = mixtral()
    (first,) = base.find("model.layers.0.block_sparse_moe.experts.3.w1")
    (third,) = base.find("model.layers.0.block_sparse_moe.experts.3.w3")
    assert first.owner == third.owner == "layers.0.channel_mixer.experts"
    assert (first.expert, first.leaf, first.first_row, third.first_row) == (3, "gate_up_proj", 0, first.num_rows)
    (stack,) = base.find_stack("model.layers.0.mlp.experts", "gate_up_proj")
    assert (stack.owner, stack.stored) == (first.owner, (4, 2 * first.num_rows, HIDDEN))
    assert base.find_stack("model.layers.0.mlp.experts", "up_proj") == []
    assert [place.owner for place in base.find("model.layers.0.mlp.gate")] == ["layers.0.channel_mixer.router"]


def test_a_matrix_for_each_expert_is_none_of_the_targets() -> None:
    assert llama().has_matrix("q_proj") and not llama().has_matrix("proj")
    assert not mixtral().has_matrix("w1")


def test_an_expert_that_the_base_has_not_is_named() -> None:
    with pytest.raises(MissingTensor, match=r"experts\.99\.w1\.weight, which the base doesn't have"):
        mixtral().find("model.layers.0.block_sparse_moe.experts.99.w1")


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("model.language_model.layers.0.self_attn.forget_gate.f_b_proj", "layers.0.token_mixer.decay_proj"),
        ("model.language_model.layers.0.self_attn.g_b_proj", "layers.0.token_mixer.gate_proj"),
        ("model.language_model.layers.1.self_attn.indexer.wk", "layers.1.token_mixer.indexer.compressor.kv_gate_proj"),
    ],
)
@pytest.mark.parametrize("is_published", [True, False])
def test_modules_that_transformers_inserts_are_found_in_published_files(
    is_published: bool, module: str, owner: str
) -> None:
    found = glm_shapes(is_published=is_published)
    base = BaseModules(build_glm(view_of(found, GLM)), lambda name: found[name])
    assert [place.owner for place in base.find(module)] == [owner]
