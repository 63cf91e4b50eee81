"""Plans of adapters: names, shapes, ranks, and what is said of those that don't fit."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.config import LoraConfig
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import AdapterPlan, plan_adapter
from tests.inference.modelling.families.headers import HIDDEN
from tests.inference.modelling.lora.bases import llama, mixtral

PREFIX = "base_model.model."
QUERY = f"{PREFIX}model.layers.0.self_attn.q_proj"


def plan(shapes: dict[str, tuple[int, ...]], base: BaseModules | None = None, **config: Any) -> AdapterPlan:
    tensors = {name: TensorInfo("F32", shape) for name, shape in shapes.items()}
    return plan_adapter(LoraConfig.from_dict({"r": 2, **config}), tensors, base or llama())


def pair(module: str, outputs: int, inputs: int, rank: int = 2) -> dict[str, tuple[int, ...]]:
    return {f"{module}.lora_A.weight": (rank, inputs), f"{module}.lora_B.weight": (outputs, rank)}


def query_rows() -> int:
    return llama().find("model.layers.0.self_attn.q_proj")[0].num_rows


def test_a_matrix_is_planned_with_rank_and_scale() -> None:
    found = plan(pair(QUERY, query_rows(), HIDDEN), lora_alpha=6, base_model_name_or_path="maker/base")
    (matrix,) = found.matrices
    assert (matrix.rank, matrix.scale, matrix.num_inputs, found.rank, found.targets) == (2, 3.0, HIDDEN, 2, ("q_proj",))
    assert found.num_values == 2 * (HIDDEN + query_rows())


@pytest.mark.parametrize(
    ("shapes", "config", "words"),
    [
        (pair(QUERY, 99, HIDDEN), {}, r"lora_B.weight of the adapter has shape \[99, 2\]"),
        (pair(QUERY, 8, HIDDEN + 1), {"base_model_name_or_path": "maker/base"}, "trained on, maker/base"),
        (pair(QUERY, 8, HIDDEN, 3), {}, "rank 3, adapter_config.json says 2"),
        ({f"{QUERY}.lora_A.weight": (2, HIDDEN)}, {}, "no lora_B.weight for model.layers.0.self_attn.q_proj"),
        ({f"{QUERY}.lora_A.weight": (2, HIDDEN), f"{QUERY}.lora_B.weight": (8,)}, {}, "must be a matrix"),
        (pair(f"{PREFIX}model.layers.7.self_attn.q_proj", 8, HIDDEN), {}, "which the base doesn't have"),
        ({}, {}, "no LoRA tensors"),
        ({f"{QUERY}.lora_C": (1,)}, {}, "no part of a LoRA adapter"),
        ({f"{PREFIX}model.layers.0.self_attn.x.bias": (1,)}, {}, "which the base doesn't have"),
        (pair(f"{PREFIX}model.embed_tokens", 4, 4), {}, "lora_embedding_A and lora_embedding_B is needed"),
    ],
)
def test_what_does_not_fit_is_said(shapes: dict[str, tuple[int, ...]], config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        plan(shapes, **config)


def test_other_vocabularies_are_named() -> None:
    vocab = llama().vocab_size
    name = f"{PREFIX}model.embed_tokens"
    shapes = {f"{name}.lora_embedding_A": (2, vocab + 3), f"{name}.lora_embedding_B": (HIDDEN, 2)}
    with pytest.raises(TensorShapeMismatch, match=f"vocabulary of {vocab + 3} tokens, the base has {vocab}"):
        plan(shapes)
    with pytest.raises(TensorShapeMismatch, match="another tokenizer"):
        plan({f"{PREFIX}lm_head.weight": (vocab - 1, HIDDEN)})


def test_a_target_without_tensors_is_missing() -> None:
    shapes = pair(QUERY, query_rows(), HIDDEN)
    with pytest.raises(MissingTensor, match="names v_proj in target_modules"):
        plan(shapes, target_modules=["q_proj", "v_proj"])
    plan(shapes, target_modules=["q_proj", "not_there"])
    plan(shapes, target_modules=["q_proj", "v_proj"], layers_to_transform=[0])
    plan(shapes, target_modules=r".*(q|v)_proj")


def test_dora_needs_its_magnitudes() -> None:
    shapes = pair(QUERY, query_rows(), HIDDEN)
    with pytest.raises(MissingTensor, match="no lora_magnitude_vector"):
        plan(shapes, use_dora=True)
    with pytest.raises(TensorShapeMismatch, match="lora_magnitude_vector"):
        plan(shapes | {f"{QUERY}.lora_magnitude_vector": (3,)}, use_dora=True)
    found = plan(shapes | {f"{QUERY}.lora_magnitude_vector": (query_rows(),)}, use_dora=True)
    assert found.matrices[0].magnitude == f"{QUERY}.lora_magnitude_vector"


def test_stacked_experts_are_told_by_their_shapes() -> None:
    base = mixtral()
    (stack,) = base.find_stack("model.layers.0.mlp.experts", "gate_up_proj")
    count, rows, inputs = stack.stored
    module = f"{PREFIX}model.layers.0.mlp.experts"
    outer = {f"{module}.lora_A.weight": (2 * count, rows // 2), f"{module}.lora_B.weight": (inputs, 2 * count)}
    nested = f"{module}.base_layer"
    inner = {f"{nested}.lora_A.weight": (2 * count, inputs), f"{nested}.lora_B.weight": (rows, 2 * count)}
    found = {matrix.place.leaf: matrix for matrix in plan(outer | inner, base).matrices}
    assert found["gate_up_proj"].a == f"{module}.base_layer.lora_A.weight"
    assert found["down_proj"].num_stacked == count and found["down_proj"].rank == 2
    one = f"{PREFIX}model.layers.0.block_sparse_moe.experts.3.w1"
    (matrix,) = plan(pair(one, rows // 2, inputs), base).matrices
    assert (matrix.place.expert, matrix.num_stacked) == (3, 0)
    with pytest.raises(UnsupportedFormat, match="for the expert"):
        plan(pair(one, rows // 2, inputs) | {f"{one}.lora_magnitude_vector": (rows // 2,)}, base, use_dora=True)
    with pytest.raises(TensorShapeMismatch, match="gate_up_proj"):
        plan({name: (shape[0], shape[1] + 1) for name, shape in inner.items()}, base)


def test_integers_are_no_factors() -> None:
    tensors = {name: TensorInfo("I8", shape) for name, shape in pair(QUERY, query_rows(), HIDDEN).items()}
    with pytest.raises(UnsupportedFormat, match="stored as I8"):
        plan_adapter(LoraConfig.from_dict({"r": 2}), tensors, llama())
