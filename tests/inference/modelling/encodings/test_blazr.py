"""Our own form: what config and tensors have to say of each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encodings.blazr import ROW_FORMS
from inference.modelling.families.config import Facts
from inference.modelling.layers.packed import quantise_plainly
from inference.modelling.quantisation import GROUP_SIZES
from tests.inference.modelling.encodings.tables import decoded_table

CONFIG = {
    "quant_method": "blazr", "version": 1, "stored_dtype": "bfloat16",
    "tensors": {"a.weight": "int8", "b.experts.{e}.up.weight": "int4"},
    "measured": {"mean_kl": 0.0123, "bits_per_weight": 5.25, "text": "a text"},
}  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    found = {"a.norm.weight": torch.ones(4), "a.bias": torch.zeros(3, dtype=torch.bfloat16)}
    for name, kind in (("a", "int8"), ("b.experts.0.up", "int4"), ("b.experts.11.up", "int4")):
        made = quantise_plainly(torch.randn(6, 160), kind)  # type: ignore[arg-type]
        found |= {f"{name}.weight.codes": made.values, f"{name}.weight.scales": made.scales}
    return found


def test_weights_count_as_what_they_were() -> None:
    facts = Facts()
    table = decoded_table(tensors(), CONFIG, facts)
    assert {item.name: (item.shape, item.form) for item in table.encoded} == {
        "a.weight": ((6, 160), "int8"), "b.experts.0.up.weight": ((6, 160), "int4"),
        "b.experts.11.up.weight": ((6, 160), "int4"),
    }  # fmt: skip
    assert table.tensors["a.weight"].dtype == "BF16"
    assert "a.bias" in table.tensors, "a bias of zeros belongs to the checkpoint"
    (fact,) = facts.facts
    assert fact.value == "blazr, int4: 2, int8: 1; 5.25 bits per weight, KL 1.23e-02 nats as measured on a text"
    assert not facts.warnings


def test_groups_are_those_of_the_products() -> None:
    assert {name: form.group for name, form in ROW_FORMS.items()} == GROUP_SIZES


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors().items() if name not in names}


@pytest.mark.parametrize(
    ("files", "config", "error", "message"),
    [
        (without("a.weight.codes", "a.weight.scales"), {}, MissingTensor, "that a.weight is stored as int8, but a"),
        (without("a.weight.scales"), {}, MissingTensor, "a.weight.codes holds codes, but a.weight.scales"),
        (tensors(), {"tensors": {"a.weight": "int8"}}, MissingTensor, "b.experts.0.up.weight.codes holds codes, but"),
        (tensors(), {"tensors": {"a.weight": "int4"}}, UnsupportedFormat, "int4, whose codes are U8, but a.weight"),
        (tensors(), {"tensors": {"a.weight": "int7"}}, UnsupportedFormat, "a.weight is stored as 'int7'; int8, int4"),
        (tensors(), {"tensors": {"a.weight": 3}}, UnsupportedFormat, "stored as '3'"),
        (tensors(), {"tensors": []}, CorruptCheckpoint, "has no tensors"),
        (tensors(), {"stored_dtype": "int8"}, CorruptCheckpoint, "stored_dtype is 'int8'"),
        (tensors(), {"version": 2}, UnsupportedFormat, "version 2 of blazr's own form; 1 is read"),
        (tensors() | {"a.weight.scales": torch.ones(6, 3, dtype=torch.bfloat16)}, {}, TensorShapeMismatch, r"\[6, 2\]"),
        (tensors() | {"a.weight": torch.ones(6, 160)}, {}, TensorShapeMismatch, "a.weight is stored twice"),
        (tensors() | {"a.weight.codes": torch.ones(6, dtype=torch.int8)}, {}, TensorShapeMismatch, "a matrix or a st"),
    ],
)  # fmt: skip
def test_contradictions_name_both(
    files: dict[str, torch.Tensor], config: dict[str, Any], error: type[BlazrError], message: str
) -> None:
    with pytest.raises(error, match=message):
        decoded_table(files, CONFIG | config)


@pytest.mark.parametrize(
    "measured",
    [None, 3, {}, {"mean_kl": "x", "bits_per_weight": True}, {"mean_kl": 10**400}, {"mean_kl": float("nan")}],
)
def test_figures_that_make_no_sense_are_left_out(measured: Any) -> None:
    facts = Facts()
    decoded_table(tensors(), CONFIG | {"measured": measured}, facts)
    assert facts.facts[0].value == "blazr, int4: 2, int8: 1"
