"""Shapes of sources from headers alone."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.families.checks import source_shape
from inference.modelling.families.llama import build_spec
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor
from tests.inference.modelling.families.headers import llama, view_of

TABLE = view_of(
    {"a": (6, 4), "b": (2, 4), "c": (3, 5, 4), "e.0": (2, 4), "e.1": (2, 4), "odd.0": (2, 4), "odd.1": (3, 4)}
)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (tensor("a"), (6, 4)),
        (concatenated("a", "b"), (8, 4)),
        (Source((Piece("a", rows=(1, 4)),)), (3, 4)),
        (Source((Piece("a", transpose=True),)), (4, 6)),
        (Source((Piece("a", per_group=(3, 0, 2)),)), (4, 4)),
        (Source((Piece("a", stride=(1, 2)),)), (3, 4)),
        (Source((Piece("a", reshape=(24,)),)), (24,)),
        (Source((Piece("c", index=2),)), (5, 4)),
        (Source((Piece("c", index=-1, transpose=True),), 3), (3, 4, 5)),
        (Source((Piece("e.{e}"),), 2), (2, 2, 4)),
    ],
)
def test_shape_of_each_step(source: Source, shape: tuple[int, ...]) -> None:
    assert source_shape(source, TABLE.tensors) == shape


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source((Piece("a", rows=(1, 9)),)), "its use doesn't allow"),
        (Source((Piece("a", per_group=(4, 0, 1)),)), "its use doesn't allow"),
        (Source((Piece("a", reshape=(5, 5)),)), "its use doesn't allow"),
        (concatenated("a", "c"), "can't be put together"),
        (Source((Piece("c", index=-1),), 2), "c is a stack of 3 matrices for 2 experts"),
        (Source((Piece("a", parts=3, index=-1),), 2), "a is a stack of 3 matrices for 2 experts"),
        (Source((Piece("c", index=-1),), 4), "c is a stack of 3 matrices for 4 experts"),
        (Source((Piece("odd.{e}"),), 2), r"expert 1 has shape \[3, 4\]"),
    ],
)
def test_steps_that_do_not_fit_are_refused(source: Source, words: str) -> None:
    with pytest.raises(TensorShapeMismatch, match=words):
        source_shape(source, TABLE.tensors)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(MissingTensor, match="tensor z is missing"):
        source_shape(tensor("z"), TABLE.tensors)


@pytest.mark.parametrize(
    "name",
    [
        "score.weight",
        "v_head.summary.weight",
        "lm_head.bias",
        "model.layers.0.self_attn.sinks",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.mlp.gate_proj.bias",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.layers.0.attn.bias",
        "model.norm.bias",
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(name: str) -> None:
    """A head of another task, sinks, norms, biases: without them the model would compute something else."""
    with pytest.raises(UnsupportedArchitecture, match=f"1 tensors have no place in llama: {name}") as caught:
        build_spec(view_of(llama(1) | {name: (4,)}, {"num_heads": 4}))
    assert caught.value.param == name


def test_old_buffers_are_left_out() -> None:
    buffers = ("layers.0.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.masked_bias", "position_ids")
    view = view_of(llama(1) | {f"model.{name}": (2,) for name in buffers}, {"num_heads": 4})
    assert len(build_spec(view).layers) == 1
    assert view.facts.warnings == []


@pytest.mark.parametrize(
    "name",
    [
        "model.mtp_block.0.self_attn.q_proj.weight", "model.mtp_emb_norm.0.weight", "model.mtp_linear_proj.0.weight",
        "mtp.layers.0.self_attn.q_proj.weight", "mtp.fc.weight", "model.mtp.layers.0.eh_proj.weight",
        "model.mtp_layers.0.enorm.weight",
    ],
)  # fmt: skip
def test_layers_that_only_draft_are_left_out(name: str) -> None:
    """Those of ERNIE 4.5 and K-EXAONE were tensors without a place, and the files were refused."""
    view = view_of(llama(1) | {name: (4,)}, {"num_heads": 4})
    assert build_spec(view) == build_spec(view_of(llama(1), {"num_heads": 4}))


def test_a_dtype_that_is_not_read_is_refused() -> None:
    view = view_of(llama(1), {"num_heads": 4})
    name = "model.layers.0.mlp.up_proj.weight"
    view.tensors._tensors[name] = type(view.tensors[name])("I8", view.tensors[name].shape)
    with pytest.raises(UnsupportedFormat, match=r"up_proj\.weight is stored as I8"):
        build_spec(view)
