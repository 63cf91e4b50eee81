"""GPT-2 and OPT: their tables of positions, and matrices that are stored inputs first."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest, TensorShapeMismatch
from inference.llm.options import LLMOptions
from inference.llm.sizes import plan_states
from inference.modelling.families.gpt2 import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, mlp, view_of

CONFIG = {"model_type": "gpt2", "n_head": 4}


def shapes() -> dict:
    found = {
        "wte.weight": (VOCAB, HIDDEN),
        "wpe.weight": (64, HIDDEN),
        "ln_f.weight": (HIDDEN,),
        "ln_f.bias": (HIDDEN,),
    }
    for name in ("ln_1", "ln_2"):
        found |= {f"h.0.{name}.weight": (HIDDEN,), f"h.0.{name}.bias": (HIDDEN,)}
    matrices = {
        "attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN), "mlp.c_fc": (HIDDEN, 24),
        "mlp.c_proj": (24, HIDDEN),
    }  # fmt: skip
    for name, shape in matrices.items():
        found |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[1:]}
    return found | {"h.0.attn.bias": (1, 1, 64, 64)}


def test_the_first_files_have_no_prefix() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    assert (spec.position_rows, spec.max_position_embeddings, spec.tie_word_embeddings) == (64, 64, True)
    for name in ("token_mixer.qkv_proj", "token_mixer.o_proj", "channel_mixer.up_proj", "channel_mixer.down_proj"):
        (piece,) = spec.parameters[f"layers.0.{name}.weight"].pieces
        assert piece.transpose, name
        (piece,) = spec.parameters[f"layers.0.{name}.bias"].pieces
        assert not piece.transpose, name


@pytest.mark.parametrize("stated", [{"n_embd": 17}, {"n_inner": 25}, {"n_positions": 65}])
def test_sizes_that_contradict_the_shapes_are_refused(stated: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(stated))):
        build_spec(view_of(shapes() | mlp("x."), CONFIG | stated))


@pytest.mark.parametrize("shape", [(), (24,), (HIDDEN, 24, 1)])
def test_a_projection_that_is_no_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorShapeMismatch, match=r"c_fc\.weight has shape"):
        build_spec(view_of(shapes() | {"h.0.mlp.c_fc.weight": shape}, CONFIG))


def test_a_context_beyond_the_positions_is_refused() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    with pytest.raises(InvalidRequest, match="max_model_len is 65, but the model has 64 learned positions"):
        plan_states(spec, LLMOptions(max_model_len=65, device="cpu"))
