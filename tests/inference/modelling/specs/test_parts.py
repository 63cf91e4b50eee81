"""Parts of specs: norms, names with a prefix, sizes of states."""

from __future__ import annotations

from inference.modelling.specs.parts import NormSpec, StateTensor, prefixed


def test_norms_without_weight_have_no_parameters_and_layer_norms_a_bias():
    assert NormSpec(weightless=True).parameter_shapes(8) == {}
    assert NormSpec().parameter_shapes(8) == {"weight": (8,)}
    assert NormSpec("layer").parameter_shapes(8) == {"weight": (8,), "bias": (8,)}


def test_a_state_takes_the_bytes_of_its_dtype():
    assert StateTensor("k", "token", (2, 8)).size_bytes("bfloat16") == 32
    assert StateTensor("s", "sequence", (2, 8), "float32").size_bytes("bfloat16", "bfloat16") == 64
    recurrent = StateTensor("s", "sequence", (2, 8), "state")
    assert (recurrent.size_bytes("bfloat16"), recurrent.size_bytes("float32", "bfloat16")) == (64, 32)


def test_names_get_a_prefix():
    assert prefixed("a", {"b": 1}) == {"a.b": 1}
