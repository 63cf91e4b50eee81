"""The table of a quantised checkpoint: names, facts, and what is left over."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.errors import MissingTensor, UnsupportedFormat
from inference.modelling.families.config import Confidence, Facts
from tests.inference.modelling.encodings.formats import FORMATS, fp8, gptq
from tests.inference.modelling.encodings.tables import decoded_table

STATED_ONLY = (
    "fp8-blocks", "fp8-blocks-ue8m0", "compressed-fp8-blocks", "gptq-v2", "compressed-w3", "compressed-w3-old",
    "gptq-symmetric-3", "gptq-symmetric-4", "gptq-v2-symmetric", "fp8-blocks-deepseek-v4",
)  # fmt: skip
PLAIN = {"norm.weight": torch.ones(4), "b.weight": torch.ones(4, 4)}


def tensors(name: str, stem: str = "a.") -> dict[str, torch.Tensor]:
    made, _ = FORMATS[name].make(np.random.default_rng(0), 64, 128)
    return {stem + leaf: tensor for leaf, tensor in made.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_one_weight_and_a_fact(name: str) -> None:
    facts = Facts()
    table = decoded_table(PLAIN | tensors(name), FORMATS[name].config, facts)
    assert set(table.tensors) == {*PLAIN, "a.weight"}
    assert (table.tensors["a.weight"].dtype, table.tensors["a.weight"].shape) == ("F32", (64, 128))
    (fact,) = [fact for fact in facts.facts if fact.name == "quantisation"]
    assert str(fact.value).startswith(str(FORMATS[name].config["quant_method"]))
    assert "1 of 3 weights" in fact.evidence
    assert fact.confidence == Confidence.CERTAIN


@pytest.mark.parametrize("name", FORMATS)
def test_names_and_shapes_tell_the_format_without_a_config(name: str) -> None:
    if name in STATED_ONLY:
        pytest.skip("blocks of unusual sizes, odd bits and what the zero points are are only in the config")
    stated = decoded_table(tensors(name), FORMATS[name].config).encoded
    assert decoded_table(tensors(name), None).encoded == stated


def test_a_checkpoint_that_is_not_quantised_stays() -> None:
    assert list(decoded_table(PLAIN, None).tensors) == list(PLAIN)
    assert not decoded_table(PLAIN, {"quant_method": "compressed-tensors", "format": "dense"}).encoded
    with pytest.raises(UnsupportedFormat, match=r"\(gptq\), but no tensor is stored in that form"):
        decoded_table(PLAIN, {"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    "leaf", ["qzeros", "weight_scale", "weight_scale_inv", "weight_packed", "W_q", "down_proj_blocks"]
)
def test_left_overs_are_refused(leaf: str) -> None:
    with pytest.raises(MissingTensor, match=f"c.{leaf}"):
        decoded_table(tensors("awq") | {f"c.{leaf}": torch.ones(3)}, None)
    with pytest.raises(MissingTensor, match=f"c.{leaf}"):
        decoded_table(PLAIN | {f"c.{leaf}": torch.ones(3)}, None)


def test_scales_of_activations_and_caches_are_left_out() -> None:
    facts = Facts()
    made, _ = fp8(np.random.default_rng(0), 32, 64)
    beside = {f"k_proj.{leaf}": tensor for leaf, tensor in made.items()}
    for name in ("k_proj.input_scale", "k_proj.k_scale", "attn.v_scale", "k_proj.output_scale"):
        beside[name] = torch.ones(1)
    assert list(decoded_table(beside, None, facts).tensors) == ["k_proj.weight"]
    assert any("cache" in warning for warning in facts.warnings)


def test_biases_of_zeros_are_left_out_unless_another_layer_has_them() -> None:
    named: dict[str, torch.Tensor] = {}
    for layer in range(2):
        for kind in ("q", "o"):
            made, _ = gptq(np.random.default_rng(0), 32, 64)
            named |= {f"l.{layer}.{kind}.{leaf}": tensor for leaf, tensor in made.items()}
            named[f"l.{layer}.{kind}.bias"] = torch.zeros(32, dtype=torch.float16)
    named["l.1.q.bias"][3] = 1
    facts = Facts()
    table = decoded_table(named, {"quant_method": "gptq"}, facts)
    assert sorted(name for name in table.tensors if name.endswith("bias")) == ["l.0.q.bias", "l.1.q.bias"]
    assert any("zeros" in warning for warning in facts.warnings)


def test_a_guess_says_so() -> None:
    facts = Facts()
    decoded_table(tensors("gptq-4"), None, facts)
    assert any("gptq_v2" in warning for warning in facts.warnings)
    assert facts.facts[-1].confidence == Confidence.LOW
